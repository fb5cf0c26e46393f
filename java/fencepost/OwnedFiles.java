package fencepost;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * The files of state on the heap, which Spark calls {@code 7.delta} whoever writes them: here {@code 7_0-31.delta}, by
 * generation and number of the driver. It must never let a second attempt write a version in the same run: Spark keeps
 * what an attempt wrote in the executor's memory, and asks nobody whether it counts.
 *
 * <p>A version that was decided before this run belongs to the newest driver that wrote it: older ones were replaced
 * before they decided it. Any later version is this run's own, or is not there.
 */
final class OwnedFiles implements CheckpointFileManager {
  static final String DRIVER = "spark.fencepost.state.driver";
  static final String DECIDED = "spark.fencepost.state.decided";
  private static final Pattern SPARKS = Pattern.compile("(\\d+)\\.(delta|snapshot)");
  private static final Pattern OURS = Pattern.compile("(\\d+)_(\\d+)-(\\d+)\\.(delta|snapshot)");
  private static final PathFilter ALL = path -> true;

  private final CheckpointFileManager files;
  private final String driver;
  private final long decided;

  OwnedFiles(CheckpointFileManager files, String driver, long decided) {
    this.files = files;
    this.driver = driver;
    this.decided = decided;
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    Matcher name = SPARKS.matcher(path.getName());
    return name.matches()
        ? files.createAtomic(new Path(path.getParent(), own(name)), false)
        : files.createAtomic(path, overwriteIfPossible);
  }

  @Override
  public FSDataInputStream open(Path path) {
    Path real = real(path);
    if (real == null) {
      throw OwnedFiles.<RuntimeException>sneaky(new FileNotFoundException("no driver's " + path));
    }
    return files.open(real);
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    List<FileStatus> found = new ArrayList<>();
    Map<Long, Version> versions = new HashMap<>();
    for (FileStatus file : files.list(path, ALL)) {
      Matcher name = OURS.matcher(file.getPath().getName());
      if (name.matches()) {
        versions.computeIfAbsent(Long.valueOf(name.group(1)), Version::new).add(name, file);
      } else if (filter.accept(file.getPath())) {
        found.add(file);
      }
    }
    for (Version version : versions.values()) {
      version.counted().forEach((kind, file) -> {
        FileStatus named = as(file, new Path(path, version.number + "." + kind));
        if (filter.accept(named.getPath())) {
          found.add(named);
        }
      });
    }
    return found.toArray(new FileStatus[0]);
  }

  @Override
  public void mkdirs(Path path) {
    files.mkdirs(path);
  }

  @Override
  public boolean exists(Path path) {
    Path real = real(path);
    return real != null && files.exists(real);
  }

  /** Spark deletes versions that nobody needs any more: then those of all drivers. */
  @Override
  public void delete(Path path) {
    Matcher asked = SPARKS.matcher(path.getName());
    if (!asked.matches()) {
      files.delete(path);
      return;
    }
    for (FileStatus file : files.list(path.getParent(), ALL)) {
      Matcher name = OURS.matcher(file.getPath().getName());
      if (name.matches() && name.group(1).equals(asked.group(1)) && name.group(4).equals(asked.group(2))) {
        files.delete(file.getPath());
      }
    }
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

  private String own(Matcher name) {
    return name.group(1) + "_" + driver + "." + name.group(2);
  }

  /** Null if no driver's file counts. */
  private Path real(Path path) {
    Matcher asked = SPARKS.matcher(path.getName());
    if (!asked.matches()) {
      return path;
    }
    long number = Long.parseLong(asked.group(1));
    if (number > decided) {
      return new Path(path.getParent(), own(asked));
    }
    Version version = new Version(number);
    for (FileStatus file : files.list(path.getParent(), ALL)) {
      Matcher name = OURS.matcher(file.getPath().getName());
      if (name.matches() && Long.parseLong(name.group(1)) == number) {
        version.add(name, file);
      }
    }
    FileStatus file = version.counted().get(asked.group(2));
    return file == null ? null : file.getPath();
  }

  private static FileStatus as(FileStatus file, Path path) {
    try {
      FileStatus named = new FileStatus(file);
      named.setPath(path);
      return named;
    } catch (IOException e) {
      throw OwnedFiles.<RuntimeException>sneaky(e);
    }
  }

  /** Spark's trait is Scala: its methods declare nothing, and its callers catch these very classes. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> E sneaky(IOException e) throws E {
    throw (E) e;
  }

  /** What drivers wrote of one version. */
  private final class Version {
    private final long number;
    private final Map<String, FileStatus> newest = new HashMap<>();
    private final Map<String, long[]> by = new HashMap<>();

    private Version(long number) {
      this.number = number;
    }

    private void add(Matcher name, FileStatus file) {
      boolean mine = (name.group(2) + "-" + name.group(3)).equals(driver);
      long[] writer = {Long.parseLong(name.group(2)), Long.parseLong(name.group(3))};
      String kind = name.group(4);
      if ((mine || number <= decided) && (!by.containsKey(kind) || Arrays.compare(writer, by.get(kind)) > 0)) {
        by.put(kind, writer);
        newest.put(kind, file);
      }
    }

    /** Not a snapshot that is older than the change: it is of an attempt that was never decided. */
    private Map<String, FileStatus> counted() {
      if (newest.size() == 2 && Arrays.compare(by.get("snapshot"), by.get("delta")) < 0) {
        newest.remove("snapshot");
      }
      return newest;
    }
  }
}
