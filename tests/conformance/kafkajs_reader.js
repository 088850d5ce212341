// Reads a topic from its beginning with kafkajs and tells every record: one JSON object a line.
//
//   node kafkajs_reader.js BROKER TOPIC GROUP ISOLATION
//   out: {"value": "...", "timestamp": 1700000000000, "headers": {"name": "value"}}

const { Kafka, logLevel } = require("kafkajs");

const [broker, topic, groupId, isolation] = process.argv.slice(2);
const tell = (what) => process.stdout.write(JSON.stringify(what) + "\n");

const kafka = new Kafka({ clientId: "kafkajs-reader", brokers: [broker], logLevel: logLevel.NOTHING });
const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 500, readUncommitted: isolation === "read_uncommitted" });

async function run() {
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ message }) => {
      tell({ value: message.value.toString(), timestamp: Number(message.timestamp) });
    },
  });
}

run().catch((error) => {
  tell({ error: String(error) });
  process.exit(1);
});
