// npm busmq 3.1.0 behind line-delimited JSON: {"id", "op", ...} in; {"id", "result" | "error"} and {"event", "queue", "args"} out.
// Ends with its standard input. Driven by node.py.
'use strict';

const fs = require('fs');
const readline = require('readline');
const Bus = require('busmq');

const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');
const queues = {};
let bus;

// busmq answers some calls by event and others by callback(error, result).
const answer = (id) => (error, result) => say(error ? { id, error: String(error) } : { id, result: result === undefined ? null : result });

const make = (name) => {
  const queue = bus.queue(name);
  queue.on('message', (text, id) => say({ event: 'message', queue: name, args: [id, text] }));
  queue.on('consuming', (state) => say({ event: 'consuming', queue: name, args: [state] }));
  queue.on('error', (error) => say({ event: 'error', queue: name, args: [String(error)] }));
  return queue;
};

const operations = {
  connect: ({ id, urls, options }) => {
    bus = Bus.create({ ...options, redis: urls, logger: { info() {}, warn() {}, error() {}, debug() {}, trace() {}, tag() { return this; } } });
    bus.on('error', (error) => say({ event: 'error', queue: null, args: [String(error)] }));
    if (urls.length === 0) { say({ id, result: null }); return; } // it federates only, and is never online
    bus.once('online', () => say({ id, result: null }));
    bus.connect();
  },
  attach: ({ id, queue, options }) => {
    queues[queue] = make(queue); // a queue object that was detached cannot be detached again (protocol Q25)
    queues[queue].once('attached', (existed) => say({ id, result: existed }));
    queues[queue].attach(options || {});
  },
  push: ({ id, queue, message }) => queues[queue].push(message, answer(id)),
  // Many messages without waiting in between: their ids, in the order of pushing.
  pushAll: ({ id, queue, messages }) => {
    const ids = [];
    const each = (place) => (error, got) => {
      ids[place] = error ? String(error) : got;
      if (ids.filter((one) => one !== undefined).length === messages.length) say({ id, result: ids });
    };
    messages.forEach((message, place) => queues[queue].push(message, each(place)));
  },
  consume: ({ id, queue, options }) => { queues[queue].consume(options || {}); say({ id, result: null }); },
  stop: ({ id, queue }) => { queues[queue].stop(); say({ id, result: null }); },
  // Its callback never comes on success (protocol Q2): the ack is on its way, in order before whatever is asked next.
  ack: ({ id, queue, last }) => { queues[queue].ack(last); say({ id, result: null }); },
  count: ({ id, queue }) => queues[queue].count(answer(id)),
  flush: ({ id, queue }) => queues[queue].flush(answer(id)),
  exists: ({ id, queue }) => (queues[queue] || bus.queue(queue)).exists(answer(id)),
  metadata: ({ id, queue }) => queues[queue].metadata(answer(id)),
  ttl: ({ id, queue }) => queues[queue].ttl(answer(id)),
  detach: ({ id, queue }) => { queues[queue].once('detached', () => say({ id, result: null })); queues[queue].detach(); },
  close: ({ id, queue }) => { queues[queue].once('closed', () => say({ id, result: null })); queues[queue].close(); },
  disconnect: ({ id }) => { bus.once('offline', () => say({ id, result: null })); bus.disconnect(); },
};

// Further objects, each in a file of its own: ops_<object>.js exports (context) => operations. Events: say({event, object, args}).
const context = { say, answer, get bus() { return bus; } };
for (const file of fs.readdirSync(__dirname).filter((name) => /^ops_.*\.js$/.test(name))) Object.assign(operations, require(`./${file}`)(context));

const lines = readline.createInterface({ input: process.stdin });
lines.on('line', (line) => {
  const call = JSON.parse(line);
  try {
    operations[call.op](call);
  } catch (error) {
    say({ id: call.id, error: String(error) });
  }
});
lines.on('close', () => process.exit(0));
