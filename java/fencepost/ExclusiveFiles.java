package fencepost;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager$;

/**
 * spark.sql.streaming.checkpointFileManagerClass: s3a gets {@link ObjectFiles}, the rest what Spark would take;
 * in front of either {@link OwnedFiles}, if the query keeps its state on the heap.
 * It must never treat a checkpoint that is elsewhere in a way of its own: the setting is for all queries of a session.
 */
public final class ExclusiveFiles implements CheckpointFileManager {
  private static final String SETTING = "spark.sql.streaming.checkpointFileManagerClass";
  private final CheckpointFileManager files;

  public ExclusiveFiles(Path path, Configuration conf) throws java.io.IOException {
    CheckpointFileManager plain = plain(path, conf);
    String decided = conf.get(OwnedFiles.DECIDED);
    this.files = decided == null
        ? plain : new OwnedFiles(plain, conf.get(OwnedFiles.DRIVER, ""), Long.parseLong(decided));
  }

  private static CheckpointFileManager plain(Path path, Configuration conf) throws java.io.IOException {
    if ("s3a".equals(path.getFileSystem(conf).getUri().getScheme())) {
      return new ObjectFiles(path, conf);
    }
    Configuration stock = new Configuration(conf);
    stock.unset(SETTING);
    return CheckpointFileManager$.MODULE$.create(path, stock);
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    return files.createAtomic(path, overwriteIfPossible);
  }

  @Override
  public FSDataInputStream open(Path path) {
    return files.open(path);
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    return files.list(path, filter);
  }

  @Override
  public void mkdirs(Path path) {
    files.mkdirs(path);
  }

  @Override
  public boolean exists(Path path) {
    return files.exists(path);
  }

  @Override
  public void delete(Path path) {
    files.delete(path);
  }

  @Override
  public boolean isLocal() {
    return files.isLocal();
  }

  @Override
  public Path createCheckpointDirectory() {
    return files.createCheckpointDirectory();
  }

  @Override
  public void close() {
    files.close();
  }
}
