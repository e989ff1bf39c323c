// Channels of npm busmq. An object is named by `as`, since two of them may share a channel's name.
'use strict';

const channels = {};

module.exports = (context) => ({
  channel: ({ id, as, name, local, remote }) => {
    const { say } = context;
    const channel = (channels[as] = context.bus.channel(name, local, remote));
    for (const event of ['connect', 'disconnect', 'remote:connect', 'remote:disconnect', 'end']) channel.on(event, () => say({ event, object: as, args: [] }));
    channel.on('message', (text, number) => say({ event: 'message', object: as, args: [Number(number), text] }));
    channel.on('error', (error) => say({ event: 'error', object: as, args: [String(error)] }));
    say({ id, result: null });
  },
  channelOpen: ({ id, as, how, options }) => {
    channels[as].once('connect', () => context.say({ id, result: null }));
    channels[as][how](options || {});
  },
  channelLeave: ({ id, as, how }) => {
    channels[as].once('disconnect', () => context.say({ id, result: null }));
    channels[as][how]();
  },
  channelSend: ({ id, as, message }) => channels[as].send(message, context.answer(id)),
  channelSendTo: ({ id, as, endpoint, message }) => channels[as].sendTo(endpoint, message, context.answer(id)),
  channelAck: ({ id, as, last }) => { channels[as].ack(last); context.say({ id, result: null }); },
});
