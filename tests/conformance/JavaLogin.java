// Logs in with Kafka's own client by each mechanism, writes for longer than the login holds, and says how it went.
//
//   java JavaLogin.java BROKER USER PASSWORD MILLISECONDS MECHANISM...
//   out: "MECHANISM sent" or "MECHANISM <name of the exception>"

import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class JavaLogin {
    public static void main(String[] words) throws Exception {
        long sendFor = Long.parseLong(words[3]);
        for (int number = 4; number < words.length; number++) {
            System.out.println(words[number] + " " + run(words[0], words[1], words[2], sendFor, words[number]));
        }
        System.exit(0);
    }

    static String run(String broker, String user, String password, long sendFor, String mechanism) {
        String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
        Map<String, Object> wishes = Map.of(
            "bootstrap.servers", broker,
            "security.protocol", "SASL_PLAINTEXT",
            "sasl.mechanism", mechanism,
            "sasl.jaas.config", "org.apache.kafka.common.security." + module
                + " required username=\"" + user + "\" password=\"" + password + "\";",
            "max.block.ms", "15000");
        try (var producer = new KafkaProducer<>(wishes, new StringSerializer(), new StringSerializer())) {
            long started = System.currentTimeMillis();
            do {
                producer.send(new ProducerRecord<>("t", "java")).get();
                Thread.sleep(50);
            } while (System.currentTimeMillis() - started < sendFor);
            return "sent";
        } catch (Exception error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            return cause.getClass().getSimpleName();
        }
    }
}
