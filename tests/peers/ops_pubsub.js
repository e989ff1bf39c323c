// Pubsub of npm busmq. Events: message(text), error.
'use strict';

module.exports = (context) => {
  const made = {};
  const of = (name) => {
    if (!made[name]) {
      made[name] = context.bus.pubsub(name);
      made[name].on('message', (text) => context.say({ event: 'message', object: name, args: [text] }));
      made[name].on('error', (error) => context.say({ event: 'error', object: name, args: [String(error)] }));
    }
    return made[name];
  };
  return {
    pubsubSubscribe: ({ id, name }) => { of(name).once('subscribed', () => context.say({ id, result: null })); of(name).subscribe(); },
    pubsubUnsubscribe: ({ id, name }) => { of(name).once('unsubscribed', () => context.say({ id, result: null })); of(name).unsubscribe(); },
    pubsubPublish: ({ id, name, message }) => of(name).publish(message, context.answer(id)),
  };
};
