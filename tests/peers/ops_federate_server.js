// A federation server of npm busmq, on a bus of its own.
'use strict';

const http = require('http');
const Bus = require('busmq');

const quiet = { info() {}, warn() {}, error() {}, debug() {}, trace() {}, isDebug: () => false, tag() { return this; } };

module.exports = (context) => {
  let server;
  let bus;
  const sockets = new Set();
  return {
    federateServe: ({ id, urls, port, path, secret, options }) => {
      server = http.createServer();
      server.on('connection', (socket) => { sockets.add(socket); socket.on('close', () => sockets.delete(socket)); });
      server.listen(port || 0, '127.0.0.1', () => {
        bus = Bus.create({ ...options, redis: urls, federate: { server, path, secret }, logger: quiet });
        bus.on('error', (error) => context.say({ event: 'error', queue: null, args: [String(error)] }));
        bus.once('online', () => context.say({ id, result: server.address().port }));
        bus.connect();
      });
    },
    // As a router does that forgets its connections: no closing handshake.
    federateDrop: ({ id }) => { const many = sockets.size; for (const socket of sockets) socket.destroy(); context.say({ id, result: many }); },
    federateSockets: ({ id }) => context.say({ id, result: sockets.size }),
  };
};
