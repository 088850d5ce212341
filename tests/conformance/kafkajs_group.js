// A member of a group, written with kafkajs and driven by lines: one JSON object a line on standard output for all that
// happens, one word a line on standard input for what it shall do.
//
//   node kafkajs_group.js BROKER TOPIC GROUP SESSION_MS HEARTBEAT_MS
//   in:  "leave"          disconnects properly and ends
//   out: {"held": [0, 1]}  after every rebalance
//        {"value": "..."}  for every message, once it is committed

const { Kafka, logLevel } = require("kafkajs");
const readline = require("node:readline");

const [broker, topic, groupId, sessionTimeout, heartbeatInterval] = process.argv.slice(2);
const tell = (what) => process.stdout.write(JSON.stringify(what) + "\n");

const kafka = new Kafka({ clientId: "kafkajs-member", brokers: [broker], logLevel: logLevel.NOTHING });
const consumer = kafka.consumer({
  groupId,
  sessionTimeout: Number(sessionTimeout),
  heartbeatInterval: Number(heartbeatInterval),
  rebalanceTimeout: 10000,
  // It beats between two fetches alone: one that waits for longer than the session would end it.
  maxWaitTimeInMs: 200,
  retry: { initialRetryTime: 100, retries: 50 },
});

consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
  tell({ held: (payload.memberAssignment[topic] || []).sort() });
});

async function run() {
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      const offset = String(BigInt(message.offset) + 1n);
      await consumer.commitOffsets([{ topic, partition, offset, metadata: "kafkajs" }]);
      tell({ value: message.value.toString() });
    },
  });
}

readline.createInterface({ input: process.stdin }).on("line", async (line) => {
  if (line === "leave") {
    await consumer.disconnect();
    process.exit(0);
  }
});

run().catch((error) => {
  tell({ error: String(error) });
  process.exit(1);
});
