// A transactional producer, written with kafkajs and driven by lines: one JSON array a line on standard input for what it
// shall do, one JSON object a line on standard output when it is done.
//
//   node kafkajs_transaction.js BROKER TRANSACTIONAL_ID TIMEOUT_MS
//   in:  ["begin"], ["send", TOPIC, VALUE], ["offsets", GROUP, TOPIC, OFFSET], ["commit"], ["abort"],
//        ["read", TOPIC, COUNT]
//   out: {"done": WORD}, {"error": NAME, "message": TEXT}; to "read" {"done": "read", "values": [...]} of those that are
//        committed, when so many have come and then none any more.

const { Kafka, logLevel } = require("kafkajs");
const readline = require("node:readline");

const [broker, transactionalId, transactionTimeout] = process.argv.slice(2);
const tell = (what) => process.stdout.write(JSON.stringify(what) + "\n");

const kafka = new Kafka({
  clientId: "kafkajs-producer",
  brokers: [broker],
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 60 },
});
const producer = kafka.producer({
  transactionalId,
  idempotent: true,
  maxInFlightRequests: 1,
  transactionTimeout: Number(transactionTimeout),
});
const admin = kafka.admin();
let transaction = null;
let readers = 0;

async function read(topic, count) {
  const groupId = `reader-${transactionalId}-${(readers += 1)}`;
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 50, readUncommitted: false });
  const values = [];
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const done = new Promise((resolve) => consumer.on(consumer.events.FETCH, ({ payload }) => {
    if (payload.numberOfBatches === 0 && values.length >= count) resolve();
  }));
  await consumer.run({ autoCommit: false, eachMessage: async ({ message }) => values.push(message.value.toString()) });
  await done;
  await consumer.disconnect();
  return values;
}

async function act([word, ...others]) {
  if (word === "begin") transaction = await producer.transaction();
  if (word === "send") await transaction.send({ topic: others[0], messages: [{ value: others[1], partition: 0 }] });
  if (word === "commit") await transaction.commit();
  if (word === "abort") await transaction.abort();
  if (word === "read") return { done: word, values: await read(...others) };
  if (word === "offsets") {
    const [consumerGroupId, topic, offset] = others;
    await transaction.sendOffsets({ consumerGroupId, topics: [{ topic, partitions: [{ partition: 0, offset }] }] });
  }
  return { done: word };
}

async function run() {
  await producer.connect();
  await admin.connect();
  tell({ done: "connect" });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    try {
      tell(await act(JSON.parse(line)));
    } catch (error) {
      tell({ error: error.type || error.name, message: error.message });
    }
  }
  process.exit(0);
}

run().catch((error) => {
  tell({ error: String(error) });
  process.exit(1);
});
