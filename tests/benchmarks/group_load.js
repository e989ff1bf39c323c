// What npm's work queues do with as many small jobs, one process, 100 at once: node group_load.js MODULES URL bullmq|hfxbus JOBS
'use strict';

const [modules, url, which, count] = [process.argv[2], new URL(process.argv[3]), process.argv[4], Number(process.argv[5])];
const load = (name) => require(require.resolve(name, { paths: [modules] }));
const CONCURRENCY = 100;
const BATCH = 1000;
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const value = 'x'.repeat(100);

async function inBatches(push) {
  for (let done = 0; done < count; done += BATCH) await push(Array.from({ length: BATCH }, (_, i) => done + i));
}

async function timed(begin) {
  let began, left = count;
  await new Promise((resolve, reject) => { Promise.resolve(begin(() => { if (--left === 0) resolve(); }, () => { began = process.hrtime.bigint(); })).catch(reject); });
  process.stdout.write(JSON.stringify({ rate: count / (Number(process.hrtime.bigint() - began) / 1e9) }) + '\n');
  process.exit(0);
}

async function bullmq(done, start) {
  const { Queue, Worker } = load('bullmq');
  const name = `bench${process.pid}`;
  const queue = new Queue(name, { connection, defaultJobOptions: { removeOnComplete: true } });
  await inBatches((some) => queue.addBulk(some.map(() => ({ name: 'job', data: value }))));
  start();
  new Worker(name, async () => {}, { connection, concurrency: CONCURRENCY }).on('completed', done);
}

async function hfxbus(done, start) {
  const { ConnectionManager, Consumer, Producer } = load('hfxbus');
  const manager = ConnectionManager.standalone(connection);
  const [producer, stream] = [new Producer(manager), `bench${process.pid}`];
  await inBatches((some) => Promise.all(some.map(() => producer.send({ stream, job: producer.job() }))));
  start();
  const consumer = new Consumer(manager, { group: 'bench', concurrency: CONCURRENCY });
  consumer.process({ stream, fromId: '0', processor: async (job) => { const settled = job.resolve; job.resolve = () => settled().then(done); } });
  await consumer.play();
}

timed(which === 'bullmq' ? bullmq : hfxbus).catch((error) => { console.error(error); process.exit(1); });
