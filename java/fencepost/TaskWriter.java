package fencepost;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.channels.Channels;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.SerializableConfiguration;

/**
 * One task attempt: rows become Arrow batches, kept in memory while small, else in a file of its own.
 * It must never touch anything that another attempt or the driver wrote.
 */
final class TaskWriter implements DataWriter<InternalRow> {
  private static final int BATCH_ROWS_MAX = 10_000;
  private static final long BATCH_BYTES_MAX = 4 << 20;
  private static final int ROWS_BETWEEN_SIZE_CHECKS = 128; // asking for the size visits every column
  private static final long BYTES_BETWEEN_SIZE_CHECKS = BATCH_BYTES_MAX / 8; // of rows, as Spark counts them

  /** All a task needs; nothing in it lives on the driver only. */
  record Factory(
      StructType type,
      byte[] schema,
      String staged,
      boolean durable,
      long inlineBytesMax,
      Broadcast<SerializableConfiguration> conf) // null: a local path
      implements StreamingDataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
      return new TaskWriter(this, epoch);
    }
  }

  /** The rows themselves, or the file that holds them (exactly one of the two, if there are rows). */
  record Message(long rows, List<byte[]> batches, StagedFile.Sealed file)
      implements WriterCommitMessage {}

  private final Factory to;
  private final long epoch;
  private final List<byte[]> batches = new ArrayList<>();
  private ArrowWriter arrow; // made by the first row: many partitions have none
  private StagedFile file;
  private boolean done;
  private int rowsInBatch;
  private int uncheckedRows;
  private long uncheckedBytes;
  private long rows;
  private long inlineBytes;

  private TaskWriter(Factory to, long epoch) {
    this.to = to;
    this.epoch = epoch;
  }

  static ArrowWriter arrow(StructType type) {
    return ArrowWriter.create(type, "UTC", true, false);
  }

  @Override
  public void write(InternalRow row) throws IOException {
    if (arrow == null) {
      arrow = arrow(to.type);
    }
    arrow.write(row);
    rows++;
    rowsInBatch++;
    if (rowsInBatch == BATCH_ROWS_MAX || isLargeWith(row)) {
      endBatch();
    }
  }

  /** A few rows may be large together: then each is asked about, else only one of many. */
  private boolean isLargeWith(InternalRow row) {
    uncheckedRows++;
    uncheckedBytes += row instanceof UnsafeRow unsafe ? unsafe.getSizeInBytes() : BYTES_BETWEEN_SIZE_CHECKS;
    if (uncheckedRows < ROWS_BETWEEN_SIZE_CHECKS && uncheckedBytes < BYTES_BETWEEN_SIZE_CHECKS) {
      return false;
    }
    uncheckedRows = 0;
    uncheckedBytes = 0;
    return arrow.sizeInBytes() > BATCH_BYTES_MAX;
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    if (rowsInBatch > 0) {
      endBatch();
    }
    StagedFile.Sealed sealed = file == null ? null : file.seal();
    done = true;
    return new Message(rows, batches, sealed);
  }

  @Override
  public void abort() {
    discard();
  }

  @Override
  public void close() {
    if (!done) {
      discard();
    }
    if (arrow != null) {
      arrow.root().close(); // off-heap memory of the executor
      arrow = null;
    }
  }

  private void endBatch() throws IOException {
    arrow.finish();
    try (ArrowRecordBatch batch = new VectorUnloader(arrow.root()).getRecordBatch()) {
      keep(batch);
    }
    arrow.reset();
    rowsInBatch = 0;
  }

  /** A large batch goes straight into the file: as bytes it would be in memory two or three times more. */
  private void keep(ArrowRecordBatch batch) throws IOException {
    if (file == null && inlineBytes + batch.computeBodyLength() > to.inlineBytesMax) {
      Configuration conf = to.conf == null ? null : to.conf.value().value();
      file = new StagedFile(to.staged, epoch, to.durable, conf, to.schema);
      for (byte[] earlier : batches) {
        file.write(earlier);
      }
      batches.clear();
    }
    if (file != null) {
      file.write(batch);
      return;
    }
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    MessageSerializer.serialize(new WriteChannel(Channels.newChannel(out)), batch);
    batches.add(out.toByteArray());
    inlineBytes += out.size();
  }

  private void discard() {
    if (file != null) {
      file.discard();
      file = null;
    }
  }
}
