// Federated objects of npm busmq, of any type. An object is named by `as`; its federation's own events are told of `as`, too.
'use strict';

const made = {};
const nexts = {};

module.exports = (context) => {
  const { say } = context;
  const done = (id) => say({ id, result: null });
  return {
    // Answers when the object is ready to be called.
    federate: ({ id, as, type, args, url }) => {
      const federation = context.bus.federate(context.bus[type](...args), url);
      made[as] = { federation };
      for (const event of ['reconnecting', 'reconnected', 'unauthorized', 'close', 'error', 'fail']) {
        federation.on(event, (value) => {
          if (event === 'reconnected') made[as].object = value;
          say({ event: `federation:${event}`, object: as, args: typeof value === 'string' ? [value] : [] });
        });
      }
      federation.once('unauthorized', () => say({ id, error: 'unauthorized' }));
      federation.once('ready', (object) => { made[as].object = object; done(id); });
    },
    federating: ({ id }) => { context.bus.once('federating', (url) => say({ id, result: url })); },
    fedOn: ({ id, as, events }) => {
      for (const event of events) made[as].object.on(event, (...args) => say({ event, object: as, args }));
      done(id);
    },
    fedOnce: ({ id, as, event }) => { made[as].object.once(event, (...args) => say({ event: `once:${event}`, object: as, args })); done(id); },
    fedCall: ({ id, as, method, args }) => { made[as].object[method](...args); done(id); },
    fedAsk: ({ id, as, method, args }) => made[as].object[method](...args, (...values) => say({ id, result: values })),
    fedPushAll: ({ id, as, messages }) => {
      const results = [];
      messages.forEach((message, place) => made[as].object.push(message, (...values) => {
        results[place] = values;
        if (results.filter(Boolean).length === messages.length) say({ id, result: results });
      }));
    },
    // Every `next` is kept until fedNext calls it.
    fedThrottled: ({ id, as, options }) => {
      nexts[as] = [];
      made[as].object.consume({ ...options, throttle: (next) => { nexts[as].push(next); say({ event: 'throttle', object: as, args: [] }); } });
      done(id);
    },
    fedNext: ({ id, as }) => { nexts[as].shift()(); done(id); },
    fedSet: ({ id, as, values }) => { Object.assign(made[as].object, values); done(id); },
    fedGet: ({ id, as, names }) => say({ id, result: names.map((name) => made[as].object[name]) }),
    // Of the peer's own bus: where a queue is, as far as that has heard.
    find: ({ id, queue }) => context.bus.queue(queue).find(context.answer(id)),
    fedClose: ({ id, as }) => { made[as].federation.close(); done(id); },
  };
};
