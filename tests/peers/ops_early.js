// What npm busmq does with calls that are made directly after attach() or connect(), before their events have come.
'use strict';

const gather = (say, id, many) => {
  const found = [];
  return (error, result) => {
    found.push(error ? String(error) : result);
    if (found.length === many) say({ id, result: found });
  };
};

module.exports = (context) => ({
  earlyPush: ({ id, name, messages }) => {
    const queue = context.bus.queue(name);
    const done = gather(context.say, id, messages.length);
    queue.attach();
    messages.forEach((message) => queue.push(message, done));
  },
  earlyConsume: ({ id, name, many }) => {
    const queue = context.bus.queue(name);
    const done = gather(context.say, id, many);
    queue.on('message', (text) => done(null, text));
    queue.attach();
    queue.consume();
  },
  earlySend: ({ id, name, messages }) => {
    const channel = context.bus.channel(name);
    const done = gather(context.say, id, messages.length);
    channel.connect();
    messages.forEach((message) => channel.send(message, done));
  },
  earlyRequest: ({ id, name, data }) => {
    const service = context.bus.service(name);
    service.connect();
    service.request(data, { reqTimeout: 20000 }, context.answer(id));
  },
  earlyUnsubscribe: ({ id, name }) => {
    const pubsub = context.bus.pubsub(name);
    pubsub.on('unsubscribed', () => context.say({ id, result: pubsub.isSubscribed() }));
    pubsub.subscribe();
    pubsub.unsubscribe();
  },
  earlyDetach: ({ id, name }) => {
    const queue = context.bus.queue(name);
    queue.on('detached', () => setTimeout(() => context.say({ id, result: queue.isAttached() }), 50));
    queue.attach();
    queue.detach();
  },
  earlyPersist: ({ id, name }) => {
    const object = context.bus.persistify(name, {}, ['field']);
    object.field = 'early';
    object.persist(30);
    object.save((error) => { object.unpersist(); context.say(error ? { id, error: String(error) } : { id, result: 'saved' }); });
  },
});
