// npm busmq 3.1.0 as a federated client: node fed_client.js URL SECRET burst|each|consume QUEUE COUNT; says messages a second.
'use strict';

const Bus = require('../peers/node_modules/busmq');

const [url, secret, mode, name, number] = process.argv.slice(2);
const count = Number(number);
const message = 'x'.repeat(32);
const quiet = { info() {}, warn() {}, error() {}, debug() {}, trace() {}, tag() { return this; } };
const bus = Bus.create({ logger: quiet, federate: { urls: [url], secret, poolSize: 1 } });

bus.federate(bus.queue(name), url).once('ready', (queue) => {
  queue.on('error', (error) => { process.stderr.write(`${error}\n`); process.exit(1); });
  queue.on('attached', () => {
    const began = process.hrtime.bigint();
    let done = 0;
    const one = () => {
      if (++done < count) return;
      process.stdout.write(JSON.stringify(count / (Number(process.hrtime.bigint() - began) / 1e9)) + '\n');
      process.exit(0);
    };
    if (mode === 'consume') {
      queue.on('message', one);
      queue.consume({ max: count });
    } else if (mode === 'burst') {
      for (let i = 0; i < count; i++) queue.push(message, one);
    } else {
      const next = () => queue.push(message, () => { one(); next(); });
      next();
    }
  });
  queue.attach({ ttl: 600 });
});
