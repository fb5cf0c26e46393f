package fencepost;

import java.io.IOException;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;

/**
 * fs.file.impl: {@link DurableRaw} with Hadoop's checksum files, as Spark's file system API uses it.
 * A copy (RocksDB uploads its tables so) must never be reported before it is on disk.
 */
public class DurableLocal extends LocalFileSystem {
  private final DurableRaw raw;

  public DurableLocal() {
    this(new DurableRaw());
  }

  private DurableLocal(DurableRaw raw) {
    super(raw);
    this.raw = raw;
  }

  @Override
  public void copyFromLocalFile(boolean delete, Path from, Path to) throws IOException {
    Path target = target(from, to);
    super.copyFromLocalFile(delete, from, to);
    sync(target);
  }

  @Override
  public void copyFromLocalFile(boolean delete, boolean overwrite, Path from, Path to)
      throws IOException {
    Path target = target(from, to);
    super.copyFromLocalFile(delete, overwrite, from, to);
    sync(target);
  }

  private Path target(Path from, Path to) throws IOException {
    return raw.pathToFile(to).isDirectory() ? new Path(to, from.getName()) : to;
  }

  private void sync(Path target) throws IOException {
    if (raw.pathToFile(target).isFile()) {
      Path checksum = getChecksumFile(target);
      if (raw.pathToFile(checksum).isFile()) {
        Disk.syncFile(raw.pathToFile(checksum).toPath());
      }
      raw.sync(target);
    }
  }
}
