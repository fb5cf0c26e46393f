package fencepost;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.Channels;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.util.SerializableConfiguration;
import scala.reflect.ClassTag;

/**
 * A streaming sink whose tasks stage their rows and whose commit is one call into Python.
 * It must never make a row visible, nor delete a file that a message named: both belong to Python.
 *
 * <pre>tasks: rows -> Arrow -> message | file     driver: stage the messages -> snapshot -> Epochs.epoch</pre>
 */
public final class EpochSink implements TableProvider {
  private static final Map<String, Listener> LISTENERS = new ConcurrentHashMap<>();
  private static final long INLINE_BYTES = 4L << 20;
  private static final long INLINE_BYTES_PER_TASK = 64L << 10;
  private static final long INLINE_BYTES_MAX = 64L << 20;
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void register(String token, Epochs epochs) {
    LISTENERS.put(token, new Listener(epochs));
  }

  public static void unregister(String token) {
    Listener listener = LISTENERS.remove(token);
    if (listener != null && listener.conf != null) {
      listener.conf.destroy();
    }
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return new StructType();
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public Table getTable(StructType schema, Transform[] by, Map<String, String> properties) {
    return new Target();
  }

  /** Python's object, and the Hadoop settings sent once per query instead of once per task. */
  private static final class Listener {
    private final Epochs epochs;
    private Broadcast<SerializableConfiguration> conf;

    private Listener(Epochs epochs) {
      this.epochs = epochs;
    }

    private synchronized Broadcast<SerializableConfiguration> conf(Configuration now) {
      if (conf == null) {
        // Spark 4.0 has no SerializableConfiguration.broadcast
        conf = SparkSession.active().sparkContext().broadcast(
            new SerializableConfiguration(now), ClassTag.apply(SerializableConfiguration.class));
      }
      return conf;
    }
  }

  private static final class Target implements SupportsWrite {
    @Override
    public String name() {
      return "fencepost";
    }

    @Override
    public StructType schema() {
      return new StructType();
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.STREAMING_WRITE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new Builder(info);
    }
  }

  /** Two interfaces that let modes through: update, and complete, whose emptying is Python's. */
  private record Builder(LogicalWriteInfo info)
      implements WriteBuilder, SupportsStreamingUpdateAsAppend, SupportsTruncate {
    @Override
    public WriteBuilder truncate() {
      return this;
    }

    @Override
    public Write build() {
      return new Write() {
        @Override
        public StreamingWrite toStreaming() {
          return new Epoch(info);
        }
      };
    }
  }

  private static final class Epoch implements StreamingWrite {
    private final String queryId;
    private final StructType type;
    private final byte[] schema;
    private final Listener listener;
    private final Path staged;
    private final String here; // null: no copy wanted, or staged is here anyway
    private final long inlineBytes;
    private final boolean durable;
    private final Configuration conf; // null: a local path

    private Epoch(LogicalWriteInfo info) {
      CaseInsensitiveStringMap options = info.options();
      String token = required(options, "token");
      this.listener = LISTENERS.get(token);
      if (listener == null) {
        throw new IllegalStateException("nobody is registered under this token; the query must "
            + "be started by fencepost in this driver");
      }
      this.queryId = info.queryId();
      this.type = info.schema();
      this.schema = schemaMessage(type);
      this.inlineBytes = options.getLong("inline_bytes", INLINE_BYTES);
      this.durable = options.getBoolean("durable", true);
      Path directory = new Path(required(options, "staged"));
      if (StagedFile.isLocal(directory)) {
        this.staged = directory;
        this.here = null;
        this.conf = null;
      } else {
        this.here = options.get("local");
        this.conf = SparkSession.active().sessionState().newHadoopConf();
        this.staged = qualified(directory, conf);
      }
    }

    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
      return new TaskWriter.Factory(
          type,
          schema,
          staged.toString(),
          durable,
          inlineBytesPerTask(inlineBytes, info.numPartitions()),
          conf == null ? null : listener.conf(conf));
    }

    /**
     * What a task may send to the driver instead of writing a file. Some tens of KB are always worth it, for a file
     * costs more than they do: a request, a name in the decision, a fetch. But thousands of tasks must not fill the
     * driver: all together never more than INLINE_BYTES_MAX. With 10,000 partitions that leaves 6.5 KB to each, so
     * an epoch writes 10,000 files only if it has more than 64 MB; there the cure is fewer partitions, not more memory.
     */
    private static long inlineBytesPerTask(long wanted, int partitions) {
      long tasks = Math.max(1, partitions);
      return Math.max(wanted / tasks, Math.min(INLINE_BYTES_PER_TASK, INLINE_BYTES_MAX / tasks));
    }

    /** Files of losing attempts are orphans that nobody reads, so no task has to ask for leave. */
    @Override
    public boolean useCommitCoordinator() {
      return false;
    }

    @Override
    public void commit(long epoch, WriterCommitMessage[] messages) {
      try {
        ObjectNode told = JSON.createObjectNode();
        stageInOrder(epoch, messages, told.putArray("files"));
        told.put("snapshot", Snapshot.text(queryId));
        listener.epochs.epoch(epoch, JSON.writeValueAsString(told));
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }

    /**
     * The files in the order of the partitions, which is the order of the messages: a sink that keeps the last row of
     * a key must not see another one as the last because a task had many rows. Rows that came in messages become one
     * file, straight from the messages, unless the file of a task lies between them.
     */
    private void stageInOrder(long epoch, WriterCommitMessage[] messages, ArrayNode files)
        throws IOException {
      StagedFile together = null;
      long rows = 0;
      try {
        for (WriterCommitMessage each : messages) {
          TaskWriter.Message message = (TaskWriter.Message) each;
          if (message.file() != null) {
            if (together != null) {
              describe(files.addObject(), together.seal(), rows);
              together = null;
              rows = 0;
            }
            describe(files.addObject(), message.file(), message.rows());
            continue;
          }
          for (byte[] batch : message.batches()) {
            if (together == null) {
              together = new StagedFile(staged.toString(), here, epoch, durable, conf, schema);
            }
            together.write(batch);
          }
          rows += message.rows();
        }
        if (together != null) {
          describe(files.addObject(), together.seal(), rows);
        }
      } catch (IOException | RuntimeException e) {
        if (together != null) {
          together.discard();
        }
        throw e;
      }
    }

    /** Spark also calls this after a commit that failed late: the epoch may be decided already. */
    @Override
    public void abort(long epoch, WriterCommitMessage[] messages) {}

    private static void describe(ObjectNode node, StagedFile.Sealed file, long rows) {
      node.put("file", file.name());
      node.put("rows", rows);
      node.put("bytes", file.bytes());
      node.put("sum", file.sum());
    }

    private static Path qualified(Path directory, Configuration conf) {
      try {
        return directory.getFileSystem(conf).makeQualified(directory);
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }

    private static String required(CaseInsensitiveStringMap options, String name) {
      String value = options.get(name);
      if (value == null || value.isEmpty()) {
        throw new IllegalArgumentException("fencepost.EpochSink needs the option '" + name + "'");
      }
      return value;
    }

    /** The schema as the tasks' own writer makes it, so that schema and batches always agree. */
    private static byte[] schemaMessage(StructType type) {
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      ArrowWriter arrow = TaskWriter.arrow(type);
      try {
        MessageSerializer.serialize(
            new WriteChannel(Channels.newChannel(out)), arrow.root().getSchema());
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      } finally {
        arrow.root().close();
      }
      return out.toByteArray();
    }
  }
}
