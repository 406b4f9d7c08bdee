import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;

/** Kafka's own clients: what each has seen is printed, in lines that the test knows. */
public class Clients {
    static final Duration SHORT = Duration.ofMillis(100);
    static final int RECORDS = 100;
    static String bootstrap;

    public static void main(String[] args) throws Exception {
        bootstrap = args[1];
        Map<String, String> options = new HashMap<>();
        for (int i = 2; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            options.put(pair[0], pair[1]);
        }
        switch (args[0]) {
            case "admin" -> admin();
            case "consumers" -> consumers(options);
            case "transactions" -> transactions();
            case "streams" -> streams(options);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    static Properties settings(Map<String, String> more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        for (String side : List.of("key", "value")) {
            String name = "org.apache.kafka.common.serialization.String";
            settings.put(side + ".serializer", name + "Serializer");
            settings.put(side + ".deserializer", name + "Deserializer");
        }
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.putAll(more);
        return settings;
    }

    /** Two consumers of a group share what a producer has sent; the second one leaves. */
    static void consumers(Map<String, String> options) throws Exception {
        try (var producer = new KafkaProducer<String, String>(settings(Map.of("compression.type", "zstd")))) {
            for (int i = 0; i < RECORDS; i++)
                producer.send(new ProducerRecord<>("t", i % 4, "k" + i, "v" + i));
        }
        var more = new HashMap<>(options);
        more.put("group.id", "java");
        try (var first = new KafkaConsumer<String, String>(settings(more))) {
            first.subscribe(List.of("t"));
            Set<String> seen = new TreeSet<>();
            while (seen.size() < RECORDS)
                for (var each : first.poll(SHORT)) seen.add(each.value());
            first.commitSync();
            System.out.println("read " + seen.size());
            try (var second = new KafkaConsumer<String, String>(settings(more))) {
                second.subscribe(List.of("t"));
                while (first.assignment().size() != 2 || second.assignment().size() != 2) {
                    first.poll(SHORT);
                    second.poll(SHORT);
                }
                System.out.println("shared");
            }
            while (first.assignment().size() != 4) first.poll(SHORT);
            var partitions = first.assignment();
            long committed = first.committed(partitions).values().stream().mapToLong(OffsetAndMetadata::offset).sum();
            long ends = first.endOffsets(partitions).values().stream().mapToLong(Long::longValue).sum();
            System.out.println("alone again, committed " + committed + " of " + ends);
        }
    }

    static void admin() throws Exception {
        try (var admin = Admin.create(settings(Map.of()))) {
            var cluster = admin.describeCluster();
            System.out.println("nodes " + cluster.nodes().get().size());
            admin.createTopics(List.of(new NewTopic("new", 2, (short) 1))).all().get();
            try {
                admin.createTopics(List.of(new NewTopic("new", 2, (short) 1))).all().get();
            } catch (ExecutionException error) {
                System.out.println("again " + (error.getCause() instanceof TopicExistsException));
            }
            admin.createPartitions(Map.of("new", NewPartitions.increaseTo(3))).all().get();
            var about = admin.describeTopics(List.of("new")).allTopicNames().get().get("new");
            System.out.println("partitions " + about.partitions().size());
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, "new");
            var change = new AlterConfigOp(new ConfigEntry("retention.ms", "6000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            var config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            System.out.println("retention " + config.get("retention.ms").value());

            try (var producer = new KafkaProducer<String, String>(settings(Map.of()))) {
                long now = System.currentTimeMillis();
                for (int i = 0; i < 5; i++)
                    producer.send(new ProducerRecord<>("new", 0, now + i, "k", "v" + i));
            }
            var place = new TopicPartition("new", 0);
            var end = admin.listOffsets(Map.of(place, OffsetSpec.latest())).partitionResult(place).get();
            var newest = admin.listOffsets(Map.of(place, OffsetSpec.maxTimestamp())).partitionResult(place).get();
            System.out.println("end " + end.offset() + " newest " + newest.offset());
            var deleted = admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(2))).all();
            deleted.get();
            var start = admin.listOffsets(Map.of(place, OffsetSpec.earliest())).partitionResult(place).get();
            System.out.println("start " + start.offset());

            admin.alterConsumerGroupOffsets("idle", Map.of(place, new OffsetAndMetadata(3, "note"))).all().get();
            var held = admin.listConsumerGroupOffsets("idle").partitionsToOffsetAndMetadata().get().get(place);
            System.out.println("held " + held.offset() + " " + held.metadata());
            System.out.println("groups " + admin.listGroups().all().get().size());
            var group = admin.describeConsumerGroups(List.of("idle")).all().get().get("idle");
            System.out.println("group " + group.groupState());
            admin.deleteConsumerGroupOffsets("idle", Set.of(place)).all().get();
            admin.alterConsumerGroupOffsets("idle", Map.of(place, new OffsetAndMetadata(3))).all().get();
            admin.deleteConsumerGroups(List.of("idle")).all().get();
            admin.deleteTopics(List.of("new")).all().get();
            System.out.println("topics " + new TreeSet<>(admin.listTopics().names().get()));
        }
    }

    /** One transaction is aborted, one commits records and an offset, and a zombie is fenced. */
    static void transactions() throws Exception {
        var mine = Map.of("transactional.id", "java");
        var place = new TopicPartition("t", 0);
        try (var zombie = new KafkaProducer<String, String>(settings(mine))) {
            zombie.initTransactions();
            zombie.beginTransaction();
            zombie.send(new ProducerRecord<>("t", 0, "k", "aborted")).get();
            zombie.abortTransaction();
            zombie.beginTransaction();
            zombie.send(new ProducerRecord<>("t", 0, "k", "fenced")).get();
            try (var producer = new KafkaProducer<String, String>(settings(mine));
                    var reader = new KafkaConsumer<String, String>(
                        settings(Map.of("group.id", "txn", "isolation.level", "read_committed")))) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>("t", 0, "k", "committed"));
                reader.assign(List.of(place));
                producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(1)), reader.groupMetadata());
                producer.commitTransaction();
                try {
                    zombie.commitTransaction();
                } catch (RuntimeException error) {
                    System.out.println("fenced " + error.getClass().getSimpleName());
                }
                List<String> read = new ArrayList<>();
                reader.seekToBeginning(List.of(place));
                while (read.isEmpty())
                    for (var each : reader.poll(SHORT)) read.add(each.value());
                System.out.println("read " + read);
                System.out.println("offset " + reader.committed(Set.of(place)).get(place).offset());
            }
        }
    }

    /** A word count of Kafka Streams, started twice: what the first had counted is there. */
    static void streams(Map<String, String> options) throws Exception {
        var more = new HashMap<>(options);
        more.put("application.id", "java-words");
        more.put("commit.interval.ms", "100");
        more.put("statestore.cache.max.bytes", "0");
        more.put("session.timeout.ms", "2000");  // for so long a member that closes is still there
        more.put("heartbeat.interval.ms", "100");
        for (String lines : List.of("one two two", "three two one")) {
            try (var producer = new KafkaProducer<String, String>(settings(Map.of()))) {
                producer.send(new ProducerRecord<>("lines", lines)).get();
            }
            count(settings(more), lines.equals("one two two") ? Map.of("one", 1L, "two", 2L)
                : Map.of("one", 2L, "two", 3L, "three", 1L));
        }
    }

    static void count(Properties settings, Map<String, Long> until) throws Exception {
        var builder = new StreamsBuilder();
        builder.stream("lines", Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count()
            .toStream()
            .to("counts", Produced.with(Serdes.String(), Serdes.Long()));
        var running = new CountDownLatch(1);
        try (var streams = new KafkaStreams(builder.build(), settings);
                var reader = new KafkaConsumer<String, Long>(settings(Map.of(
                    "value.deserializer", "org.apache.kafka.common.serialization.LongDeserializer",
                    "isolation.level", "read_committed")))) {
            streams.setStateListener((now, before) -> {
                if (now == KafkaStreams.State.RUNNING) running.countDown();
            });
            streams.start();
            running.await();
            var places = reader.partitionsFor("counts").stream()
                .map(each -> new TopicPartition(each.topic(), each.partition())).toList();
            reader.assign(places);
            reader.seekToBeginning(places);
            Map<String, Long> counts = new TreeMap<>();
            while (!counts.equals(until))
                for (var each : reader.poll(SHORT)) counts.put(each.key(), each.value());
            System.out.println("counted " + counts);
        }
    }
}
