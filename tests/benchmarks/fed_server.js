// npm busmq 3.1.0 as a federation server: node fed_server.js REDIS_URL SECRET; says its URL and serves until its standard input ends.
'use strict';

const http = require('http');
const Bus = require('../peers/node_modules/busmq');

const [redis, secret] = process.argv.slice(2);
const quiet = { info() {}, warn() {}, error() {}, debug() {}, trace() {}, tag() { return this; } };
const server = http.createServer();
server.listen(0, '127.0.0.1', () => {
  const bus = Bus.create({ redis: [redis], logger: quiet, federate: { server, secret, path: '/bus' } });
  bus.once('online', () => process.stdout.write(`ws://127.0.0.1:${server.address().port}/bus\n`));
  bus.connect();
});
process.stdin.resume().on('end', () => process.exit(0));
