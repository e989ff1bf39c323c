// Services of npm busmq, both ends, each under a tag that the test gives it. Handlers are named: a test cannot send code.
'use strict';

module.exports = (context) => {
  const { say } = context;
  const services = {};
  let held = [];

  const handlers = {
    echo: (data, reply) => reply(null, { echo: data }),
    tagged: (tag) => (data, reply) => reply(null, tag),
    text: (data, reply) => reply('bad'),
    error: (data, reply) => reply(Object.assign(new Error('boom'), { code: 'E_X' })),
    silent: () => {},
    hold: (data, reply) => held.push(() => reply(null, data)),
    partial: (data, reply) => { reply(null, 'p1', true); reply(null, 'p2', true); reply(null, 'last'); },
    stream: (data, reply) => {
      const stream = reply.createWriteStream();
      for (let n = 1; n <= data; n += 1) stream.write({ n });
      stream.end();
    },
  };

  const make = (tag, name) => {
    const service = context.bus.service(name);
    service.on('error', (error) => say({ event: 'error', object: tag, args: [String(error)] }));
    service.on('disconnect', () => say({ event: 'disconnect', object: tag, args: [] }));
    services[tag] = service;
    return service;
  };

  return {
    serviceServe: ({ id, tag, name, handler, options }) => {
      const service = make(tag, name);
      const handle = handler === 'tagged' ? handlers.tagged(tag) : handlers[handler];
      service.on('request', (data, reply) => {
        say({ event: 'request', object: tag, args: [data, Boolean(reply && reply.replyTo)] });
        handle(data, reply);
      });
      service.serve(options || {}, () => say({ id, result: null }));
    },
    serviceConnect: ({ id, tag, name, options }) => make(tag, name).connect(options || {}, () => say({ id, result: null })),
    // Each reply is an event: [error, reply, partial]; of a stream [item], and at its end [].
    serviceRequest: ({ id, tag, data, options }) => {
      if (options && options.streamReply) {
        services[tag].request(data, options, (error, stream) => {
          stream.on('data', (item) => say({ event: 'item', object: tag, args: [item] }));
          stream.on('end', () => say({ event: 'item', object: tag, args: [] }));
        });
      } else {
        services[tag].request(data, options || {}, (error, reply, partial) => say({ event: 'reply', object: tag, args: [error, reply, partial] }));
      }
      say({ id, result: null });
    },
    serviceSend: ({ id, tag, data }) => { services[tag].request(data); say({ id, result: null }); },
    serviceRelease: ({ id }) => { held.forEach((reply) => reply()); held = []; say({ id, result: null }); },
    serviceDisconnect: ({ id, tag, grace }) => { services[tag].disconnect(grace); say({ id, result: null }); },
  };
};
