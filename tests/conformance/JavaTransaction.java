// A transactional producer of Apache Kafka's own client, driven by lines: words with tabs between them on standard input
// for what it shall do, a line on standard output when it is done.
//
//   java -cp JARS JavaTransaction.java BROKER TRANSACTIONAL_ID TIMEOUT_MS
//   in:  begin | send TOPIC VALUE | offsets GROUP TOPIC OFFSET | commit | abort | read TOPIC
//   out: done WORD, to "read" with the committed values after it | error CLASS MESSAGE

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

public class JavaTransaction {
    private static final String STRINGS = "org.apache.kafka.common.serialization.String";

    private final String broker;
    private final KafkaProducer<String, String> producer;

    private JavaTransaction(String broker, String transactionalId, String timeoutMs) {
        this.broker = broker;
        Properties settings = new Properties();
        settings.put("bootstrap.servers", broker);
        settings.put("transactional.id", transactionalId);
        settings.put("transaction.timeout.ms", timeoutMs);
        settings.put("reconnect.backoff.max.ms", "200");
        settings.put("key.serializer", STRINGS + "Serializer");
        settings.put("value.serializer", STRINGS + "Serializer");
        producer = new KafkaProducer<>(settings);
        producer.initTransactions();
    }

    private String act(String[] words) throws ExecutionException, InterruptedException {
        switch (words[0]) {
            case "begin" -> producer.beginTransaction();
            case "send" -> producer.send(new ProducerRecord<>(words[1], 0, null, words[2])).get();
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "offsets" -> {
                OffsetAndMetadata offset = new OffsetAndMetadata(Long.parseLong(words[3]));
                Map<TopicPartition, OffsetAndMetadata> offsets = Map.of(new TopicPartition(words[2], 0), offset);
                try (KafkaConsumer<String, String> consumer = consumer(words[1])) {
                    producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                }
            }
            case "read" -> {
                return "done\tread" + read(words[1]);
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
        return "done\t" + words[0];
    }

    private KafkaConsumer<String, String> consumer(String group) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", broker);
        settings.put("group.id", group);
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        settings.put("key.deserializer", STRINGS + "Deserializer");
        settings.put("value.deserializer", STRINGS + "Deserializer");
        return new KafkaConsumer<>(settings);
    }

    private String read(String topic) {
        TopicPartition place = new TopicPartition(topic, 0);
        StringBuilder values = new StringBuilder();
        try (KafkaConsumer<String, String> consumer = consumer("reader")) {
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            long end = consumer.endOffsets(List.of(place)).get(place);
            while (consumer.position(place) < end) {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> values.append('\t').append(record.value()));
            }
        }
        return values.toString();
    }

    public static void main(String[] arguments) throws Exception {
        JavaTransaction program = new JavaTransaction(arguments[0], arguments[1], arguments[2]);
        System.out.println("done\tconnect");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                System.out.println(program.act(line.split("\t")));
            } catch (Exception error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                System.out.println("error\t" + cause.getClass().getSimpleName() + "\t" + cause.getMessage());
            }
        }
        // Not by closing: a transaction that is open would be waited for.
        Runtime.getRuntime().halt(0);
    }
}
