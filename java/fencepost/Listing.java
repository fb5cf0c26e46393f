package fencepost;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.hdfs.protocol.HdfsFileStatus;

/**
 * What lies in a folder, as one text: Python would otherwise cross to the JVM several times per file.
 * A line per entry, in the order of the names; it must never hold two entries of one name.
 *
 * <pre>name TAB d|f TAB length TAB changed (ms) TAB stamp LF        (in names: % is %25, TAB %09, LF %0A, CR %0D)</pre>
 */
public final class Listing {
  private Listing() {}

  /** The folder's own entries; nothing if it is not there. */
  public static String names(FileSystem fs, Path folder) throws IOException {
    Path parent = fs.makeQualified(folder);
    Map<String, String> lines = new TreeMap<>();
    try {
      for (FileStatus entry : fs.listStatus(parent)) {
        if (!entry.getPath().equals(parent)) { // else it is no folder
          add(lines, entry.getPath().getName(), entry);
        }
      }
    } catch (FileNotFoundException absent) {
      return "";
    }
    return String.join("", lines.values());
  }

  /** All files below, by their path from the folder on; nothing if it is not there. */
  public static String below(FileSystem fs, Path folder) throws IOException {
    Path parent = fs.makeQualified(folder);
    Map<String, String> lines = new TreeMap<>();
    try {
      RemoteIterator<? extends FileStatus> files = fs.listFiles(parent, true);
      while (files.hasNext()) {
        FileStatus file = files.next();
        String name = parent.toUri().relativize(file.getPath().toUri()).getPath();
        if (!name.isEmpty()) {
          add(lines, name, file);
        }
      }
    } catch (FileNotFoundException absent) {
      return "";
    }
    return String.join("", lines.values());
  }

  /** One line, or nothing. */
  public static String stat(FileSystem fs, Path path) throws IOException {
    try {
      return line(path.getName(), fs.getFileStatus(path));
    } catch (FileNotFoundException absent) {
      return "";
    }
  }

  private static void add(Map<String, String> lines, String name, FileStatus entry) {
    String line = line(name, entry);
    // a store with objects has a file `a` beside a folder `a`; the file is what we wrote
    lines.merge(name, line, (one, other) -> entry.isFile() ? line : one);
  }

  private static String line(String name, FileStatus entry) {
    String plain = name.replace("%", "%25").replace("\t", "%09").replace("\n", "%0A").replace("\r", "%0D");
    return String.join("\t", plain, entry.isDirectory() ? "d" : "f", Long.toString(entry.getLen()),
        Long.toString(entry.getModificationTime()), stamp(entry)) + "\n";
  }

  /** Changes when the file was replaced, as exactly as this store can say. */
  private static String stamp(FileStatus entry) {
    if (entry.isDirectory()) {
      return "-"; // a folder of an object store is as old as the question
    }
    if (entry instanceof EtagSource tagged && tagged.getEtag() != null) {
      return tagged.getEtag();
    }
    if (entry instanceof HdfsFileStatus file) {
      return Long.toString(file.getFileId());
    }
    return entry.getModificationTime() + "-" + entry.getLen();
  }
}
