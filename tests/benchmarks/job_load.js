// Jobs a second of npm hfxbus that one process sends, works on and waits for, 1,000 in flight, and µs of its CPU a job: node job_load.js MODULES URL JOBS
'use strict';

const [modules, url, count] = [process.argv[2], new URL(process.argv[3]), Number(process.argv[4])];
const { ConnectionManager, Consumer, Producer } = require(require.resolve('hfxbus', { paths: [modules] }));
const IN_FLIGHT = 1000;
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };

async function main() {
  const stream = `bench${process.pid}`;
  const [manager, working] = [ConnectionManager.standalone(connection), ConnectionManager.standalone(connection)];
  const consumer = new Consumer(working, { group: 'g', concurrency: IN_FLIGHT });
  consumer.process({ stream, processor: async () => {} });
  await consumer.play();
  const producer = new Producer(manager);
  await producer.listen();
  let left = 100;
  async function one() {
    while (left-- > 0) await (await producer.send({ stream, waitFor: ['g'], job: producer.job() })).finished();
  }
  await one(); // warm
  left = count;
  const [began, before] = [process.hrtime.bigint(), process.cpuUsage()];
  await Promise.all(Array.from({ length: IN_FLIGHT }, one));
  const [took, { user, system }] = [Number(process.hrtime.bigint() - began) / 1e9, process.cpuUsage(before)];
  process.stdout.write(JSON.stringify({ value: count / took, process_us: (user + system) / count }) + '\n');
  process.exit(0);
}

main().catch((error) => { console.error(error); process.exit(1); });
