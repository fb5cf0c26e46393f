import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Comparator;
import java.util.Optional;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/** The job of the benchmark for Flink, in one process: arguments are servers, topic in, topic out, folder, parallelism. */
public final class FlinkCounts {
  public static void main(String[] arguments) throws Exception {
    Path checkpoints = Files.createDirectories(Path.of(arguments[3]));
    Configuration settings = new Configuration();
    settings.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis(100));
    settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, checkpoints.toUri().toString());
    settings.set(
        CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION, ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
    settings.set(StateBackendOptions.STATE_BACKEND, "hashmap");
    newest(checkpoints)
        .ifPresent(place -> settings.set(StateRecoveryOptions.SAVEPOINT_PATH, place.toUri().toString()));
    StreamExecutionEnvironment flink = StreamExecutionEnvironment.getExecutionEnvironment(settings);
    flink.setParallelism(Integer.parseInt(arguments[4]));
    flink.getConfig().enableObjectReuse();
    KafkaSource<String> source =
        KafkaSource.<String>builder()
            .setBootstrapServers(arguments[0])
            .setTopics(arguments[1])
            .setGroupId(arguments[1])
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setDeserializer(new Key())
            .build();
    KafkaSink<Tuple2<String, Long>> sink =
        KafkaSink.<Tuple2<String, Long>>builder()
            .setBootstrapServers(arguments[0])
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(arguments[2])
            // The default takes a new id for each checkpoint, which a broker remembers for a week.
            .setTransactionNamingStrategy(TransactionNamingStrategy.POOLING)
            .setProperty("transaction.timeout.ms", "600000") // the default is more than a broker allows
            .setRecordSerializer(
                KafkaRecordSerializationSchema.<Tuple2<String, Long>>builder()
                    .setTopic(arguments[2])
                    .setKeySerializationSchema(new KeyOf())
                    .setValueSerializationSchema(new CountOf())
                    .build())
            .build();
    flink
        .fromSource(source, WatermarkStrategy.noWatermarks(), "in")
        .uid("in")
        .keyBy(key -> key)
        .map(new Count())
        .uid("count")
        .sinkTo(sink)
        .uid("out");
    flink.execute("counts");
  }

  /** The newest checkpoint that is whole. */
  private static Optional<Path> newest(Path checkpoints) throws IOException {
    try (Stream<Path> files = Files.walk(checkpoints)) {
      return files
          .filter(file -> file.endsWith("_metadata"))
          .max(Comparator.comparing(file -> file.toFile().lastModified()))
          .map(Path::getParent);
    }
  }

  private static final class Key implements KafkaRecordDeserializationSchema<String> {
    @Override
    public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<String> out) {
      out.collect(new String(record.key(), StandardCharsets.UTF_8));
    }

    @Override
    public TypeInformation<String> getProducedType() {
      return Types.STRING;
    }
  }

  private static final class Count extends RichMapFunction<String, Tuple2<String, Long>> {
    private transient ValueState<Long> count;

    @Override
    public void open(OpenContext context) {
      count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
    }

    @Override
    public Tuple2<String, Long> map(String key) throws Exception {
      long now = (count.value() == null ? 0 : count.value()) + 1;
      count.update(now);
      return Tuple2.of(key, now);
    }
  }

  // Classes with a name, because Flink cannot tell the type of a lambda here.
  private static final class KeyOf implements SerializationSchema<Tuple2<String, Long>> {
    @Override
    public byte[] serialize(Tuple2<String, Long> row) {
      return row.f0.getBytes(StandardCharsets.UTF_8);
    }
  }

  private static final class CountOf implements SerializationSchema<Tuple2<String, Long>> {
    @Override
    public byte[] serialize(Tuple2<String, Long> row) {
      return Long.toString(row.f1).getBytes(StandardCharsets.UTF_8);
    }
  }
}
