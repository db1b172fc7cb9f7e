import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import java.io.FileInputStream;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.connect.source.SourceRecord;

/** Runs Debezium's engine with the properties of a file, and prints now and then how many changes it has handed on. */
public class CountChanges {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            properties.load(file);
        }
        AtomicLong count = new AtomicLong();
        Thread reporter = new Thread(() -> {
            while (true) {
                System.out.println(count.get());
                System.out.flush();
                try {
                    Thread.sleep(50);
                } catch (InterruptedException error) {
                    return;
                }
            }
        });
        reporter.setDaemon(true);
        reporter.start();
        DebeziumEngine<ChangeEvent<SourceRecord, SourceRecord>> engine = DebeziumEngine.create(Connect.class)
            .using(properties)
            .notifying((records, committer) -> {
                for (ChangeEvent<SourceRecord, SourceRecord> record : records) {
                    SourceRecord value = record.value();
                    if (value.valueSchema() != null && value.valueSchema().field("op") != null) {
                        count.incrementAndGet();
                    }
                    committer.markProcessed(record);
                }
                committer.markBatchFinished();
            })
            .using((success, message, error) -> {
                System.err.println(message);
                if (error != null) {
                    error.printStackTrace();
                }
                System.exit(success ? 0 : 1);
            })
            .build();
        engine.run();
    }
}
