package fencepost;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * Spark's checkpoint files on s3a: each appears whole, by one PUT that the store refuses if the name is taken.
 * It must never rename: that is look, copy, delete there, and a driver that slept in between overwrites its successor.
 */
final class ObjectFiles implements CheckpointFileManager {
  private static final String EXCLUSIVE = "fs.option.create.conditional.overwrite";
  private static final String NO_PROBES = "fs.s3a.create.performance";
  private static final String MARK = "fencepost-attempt";
  private static final Set<String> LOGS = Set.of("offsets", "commits");
  private static final Pattern EPOCH = Pattern.compile("\\d+");
  private static final Pattern STATE_FILE =
      Pattern.compile(".+\\.(changelog|zip|sst|log|delta|snapshot|crc)");

  private final Path root;
  private final FileSystem fs;

  ObjectFiles(Path path, Configuration conf) throws IOException {
    this.fs = path.getFileSystem(conf);
    this.root = fs.makeQualified(path);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    try {
      String attempt = UUID.randomUUID().toString();
      FSDataOutputStreamBuilder<?, ?> file = fs.createFile(path);
      file.recursive().overwrite(overwriteIfPossible).opt(NO_PROBES, true);
      if (!overwriteIfPossible) {
        // `must`: a store or a client that does not know it fails here, instead of overwriting later
        file.must(EXCLUSIVE, true).opt("fs.s3a.create.header." + MARK, attempt);
      }
      FSDataOutputStream out = (FSDataOutputStream) file.build();
      return new Upload(out, path, overwriteIfPossible ? null : attempt);
    } catch (IOException e) {
      throw sneaky(e);
    }
  }

  @Override
  public FSDataInputStream open(Path path) {
    try {
      return fs.open(path);
    } catch (IOException e) {
      throw sneaky(e);
    }
  }

  /** A folder that nobody wrote to is empty, not missing: see {@link #mkdirs}. */
  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    try {
      return fs.listStatus(path, filter);
    } catch (FileNotFoundException absent) {
      return new FileStatus[0];
    } catch (IOException e) {
      throw sneaky(e);
    }
  }

  /** Objects need no folders: a marker would cost six requests and say nothing. */
  @Override
  public void mkdirs(Path path) {}

  @Override
  public boolean exists(Path path) {
    try {
      if (isFile(path)) {
        fs.open(path).close(); // asks for the object alone, and reads nothing
      } else {
        fs.getFileStatus(path); // for the object, then for a folder
      }
      return true;
    } catch (FileNotFoundException absent) {
      return false;
    } catch (IOException e) {
      throw sneaky(e);
    }
  }

  @Override
  public void delete(Path path) {
    try {
      if (isFile(path)) {
        deleteObject(path);
      } else {
        fs.delete(path, true);
      }
    } catch (FileNotFoundException gone) {
      // as the caller wants it
    } catch (IOException e) {
      throw sneaky(e);
    }
  }

  @Override
  public boolean isLocal() {
    return false;
  }

  @Override
  public Path createCheckpointDirectory() {
    return root;
  }

  /**
   * Is this, by its name, a file and no folder? Then one request tells or deletes it, not two or three. Only names
   * that Spark chose count, so only below the path that this manager was made for.
   */
  private boolean isFile(Path path) {
    Path parent = fs.makeQualified(path).getParent();
    if (parent == null || !(parent + "/").startsWith(root + "/")) {
      return false;
    }
    boolean logged = parent.equals(root) && LOGS.contains(root.getName());
    return (logged ? EPOCH : STATE_FILE).matcher(path.getName()).matches();
  }

  /** Without a look before and without a marker for the folder after, as {@code fs.delete} has. */
  private void deleteObject(Path path) throws IOException {
    Path file = fs.makeQualified(path);
    try (BulkDelete delete = fs.createBulkDelete(file.getParent())) {
      for (Map.Entry<Path, String> failed : delete.bulkDelete(List.of(file))) {
        throw new IOException("could not delete " + failed.getKey() + ": " + failed.getValue());
      }
    }
  }

  /** Spark's trait is Scala: its methods declare nothing, and its callers catch these very classes. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException sneaky(IOException e) throws E {
    throw (E) e;
  }

  private final class Upload extends CancellableFSDataOutputStream {
    private final FSDataOutputStream out;
    private final Path path;
    private final String attempt; // null: may overwrite
    private boolean over;

    private Upload(FSDataOutputStream out, Path path, String attempt) {
      super(out);
      this.out = out;
      this.path = path;
      this.attempt = attempt;
    }

    @Override
    public synchronized void close() throws IOException {
      if (over) {
        return;
      }
      over = true;
      try {
        super.close();
      } catch (IOException e) {
        if (attempt == null || isInterrupt(e) || !isMine(e)) {
          throw e;
        }
      }
    }

    @Override
    public synchronized void cancel() {
      if (!over) {
        over = true;
        out.abort();
      }
    }

    /**
     * A refusal may be the answer to a second try whose first one arrived, and an error may hide a success: so read.
     * Spark must hear of a taken name by this exception; all else stays what it was.
     */
    private boolean isMine(IOException refused) throws IOException {
      byte[] mark;
      try {
        mark = fs.getXAttrs(path).get("header." + MARK);
      } catch (FileNotFoundException absent) {
        return false;
      } catch (IOException unreadable) {
        refused.addSuppressed(unreadable);
        return false;
      }
      if (mark != null && attempt.equals(new String(mark, StandardCharsets.UTF_8))) {
        return true;
      }
      FileAlreadyExistsException taken = new FileAlreadyExistsException(path + " already exists");
      taken.initCause(refused);
      throw taken;
    }

    private boolean isInterrupt(IOException e) {
      return e instanceof InterruptedIOException && !(e instanceof SocketTimeoutException);
    }
  }
}
