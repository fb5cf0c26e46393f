package fencepost;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.security.DigestOutputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.UUID;
import org.apache.commons.io.output.TeeOutputStream;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.IpcOption;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.hdfs.DistributedFileSystem;

/**
 * One Arrow IPC stream (schema, batches, end) under a name that no other attempt uses.
 * It must never be named to anybody before {@link #seal} returned.
 */
final class StagedFile {
  private final Path path;
  private final boolean durable;
  private final Configuration conf; // null: a local path
  private final MessageDigest digest = sha256();
  private final OutputStream out;
  private FileChannel local;
  private FSDataOutputStream remote;
  private java.nio.file.Path copy; // null: nobody here wants one
  private long bytes;

  /** What a decision says about a file: enough to find it and to notice a changed byte. */
  record Sealed(String name, long bytes, String sum) implements java.io.Serializable {}

  StagedFile(String directory, long epoch, boolean durable, Configuration conf, byte[] schema)
      throws IOException {
    this(directory, null, epoch, durable, conf, schema);
  }

  /** With a copy of the same name in {@code here}, for a reader in this process (null: none). */
  StagedFile(
      String directory, String here, long epoch, boolean durable, Configuration conf, byte[] schema)
      throws IOException {
    String name = epoch + "-" + UUID.randomUUID().toString().replace("-", "") + ".arrow";
    this.path = new Path(new Path(directory), name);
    this.durable = durable;
    this.conf = conf;
    this.out = new DigestOutputStream(new BufferedOutputStream(open(here), 1 << 16), digest);
    write(schema);
  }

  static boolean isLocal(Path path) {
    return "file".equals(path.toUri().getScheme());
  }

  void write(byte[] message) throws IOException {
    out.write(message);
    bytes += message.length;
  }

  void write(ArrowRecordBatch batch) throws IOException {
    WriteChannel channel = new WriteChannel(Channels.newChannel(out));
    MessageSerializer.serialize(channel, batch);
    bytes += channel.getCurrentPosition();
  }

  Sealed seal() throws IOException {
    WriteChannel end = new WriteChannel(Channels.newChannel(out));
    ArrowStreamWriter.writeEndOfStream(end, IpcOption.DEFAULT);
    bytes += end.getCurrentPosition();
    out.flush();
    if (durable && local != null) {
      local.force(true);
    }
    if (durable && remote != null && remote.hasCapability(StreamCapabilities.HSYNC)) {
      remote.hsync(); // stores without it are durable once closed
    }
    out.close();
    if (durable && local != null) {
      Disk.syncParent(localPath());
    }
    return new Sealed(path.getName(), bytes, HexFormat.of().formatHex(digest.digest()));
  }

  /** Best effort: a file that stays is an orphan which no decision names, and is swept. */
  void discard() {
    try {
      if (remote != null && remote.hasCapability(StreamCapabilities.ABORTABLE_STREAM)) {
        remote.abort(); // closing would put half a file under the name
      }
      out.close();
    } catch (IOException ignored) {
      // the file goes away anyway
    }
    try {
      if (copy != null) {
        Files.deleteIfExists(copy);
      }
      if (local != null) {
        Files.deleteIfExists(localPath());
      } else if (!remote.hasCapability(StreamCapabilities.ABORTABLE_STREAM)) {
        path.getFileSystem(conf).delete(path, false);
      }
    } catch (IOException ignored) {
      // swept later
    }
  }

  private OutputStream open(String here) throws IOException {
    if (isLocal(path)) {
      return openLocal();
    }
    OutputStream beside = here == null ? null : openCopy(here);
    FileSystem fs = path.getFileSystem(conf);
    // No look before and no folder: HDFS makes folders as it creates, s3a has none. The name is random, so only a
    // second try of this very file could find it taken, and that one must not be refused.
    FSDataOutputStreamBuilder<?, ?> file = fs.createFile(path);
    file.recursive().overwrite(true).opt("fs.s3a.create.performance", true);
    if (durable && file instanceof DistributedFileSystem.HdfsDataOutputStreamBuilder hdfs) {
      hdfs.syncBlock(); // each block when it is full: hsync is for the last one
    }
    remote = (FSDataOutputStream) file.build();
    return beside == null ? remote : new TeeOutputStream(remote, beside);
  }

  /** Local files bypass Hadoop: its stock class forks chmod, and adds a .crc nobody reads. */
  private OutputStream openLocal() throws IOException {
    Disk.createDirectories(localPath().getParent(), durable);
    local = FileChannel.open(localPath(), StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
    return Channels.newOutputStream(local);
  }

  /** Not synced: it serves this process only, and the staged file can be fetched again. */
  private OutputStream openCopy(String here) throws IOException {
    copy = Paths.get(here, path.getName());
    Files.createDirectories(copy.getParent());
    return Files.newOutputStream(copy, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
  }

  private java.nio.file.Path localPath() {
    return Paths.get(path.toUri().getPath());
  }

  private static MessageDigest sha256() {
    try {
      return MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException e) {
      throw new AssertionError(e); // every JDK has it
    }
  }
}
