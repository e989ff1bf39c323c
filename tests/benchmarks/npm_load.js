// npm busmq 3.1.0, one process: pushes to and consumes from 100 queues at once. node npm_load.js URL each|burst MESSAGES_PER_QUEUE
'use strict';

const Bus = require('../peers/node_modules/busmq');

const [url, mode, count] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const QUEUES = 100;
const message = 'x'.repeat(32);
const quiet = { info() {}, warn() {}, error() {}, debug() {}, trace() {}, tag() { return this; } };
const bus = Bus.create({ redis: [url], logger: quiet });

bus.once('online', () => {
  const queues = Array.from({ length: QUEUES }, (_, i) => bus.queue(`npm${i}`));
  let attached = 0;
  queues.forEach((queue) => { queue.once('attached', () => { if (++attached === QUEUES) run(queues); }); queue.attach(); });
});

function run(queues) {
  const began = process.hrtime.bigint();
  const rate = () => (QUEUES * count) / (Number(process.hrtime.bigint() - began) / 1e9);
  const found = {};
  let pushed = 0;
  let consumed = 0;
  const done = () => { if (found.push && found.consume) { process.stdout.write(JSON.stringify(found) + '\n'); process.exit(0); } };
  const onPushed = () => { if (++pushed === QUEUES * count) { found.push = rate(); done(); } };
  queues.forEach((queue) => {
    queue.on('message', () => { if (++consumed === QUEUES * count) { found.consume = rate(); done(); } });
    queue.consume();
  });
  queues.forEach((queue) => {
    let sent = 0;
    const next = () => queue.push(message, () => { onPushed(); if (++sent < count) next(); });
    if (mode === 'each') next();
    else for (let i = 0; i < count; i++) queue.push(message, onPushed);
  });
}
bus.connect();
