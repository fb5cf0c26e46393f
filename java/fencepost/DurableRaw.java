package fencepost;

import java.io.File;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * file: without a process per call, whose renames are durable and take a name only once.
 * A rename must never replace a file unless the caller asked for exactly that.
 */
public class DurableRaw extends RawLocalFileSystem {
  @Override
  public void setPermission(Path path, FsPermission permission) throws IOException {
    try { // the stock class forks chmod
      Files.setPosixFilePermissions(nio(path), posix(permission.toShort()));
    } catch (UnsupportedOperationException notPosix) {
      super.setPermission(path, permission);
    }
  }

  /** The stock class forks readlink; following links is what the callers want anyway. */
  @Override
  public FileStatus getFileLinkStatus(Path path) throws IOException {
    return getFileStatus(path);
  }

  @Override
  public boolean supportsSymlinks() {
    return false;
  }

  @Override
  public boolean rename(Path from, Path to) throws IOException {
    java.nio.file.Path source = nio(from);
    java.nio.file.Path target = nio(to);
    if (!Files.isRegularFile(source) || Files.isDirectory(target)) {
      boolean moved = super.rename(from, to);
      if (moved) {
        Disk.syncParent(source);
        Disk.syncParent(target);
      }
      return moved;
    }
    move(source, target, isChecksum(to));
    return true;
  }

  @Override
  @SuppressWarnings("deprecation")
  protected void rename(Path from, Path to, Options.Rename... options) throws IOException {
    boolean replace = java.util.Arrays.asList(options).contains(Options.Rename.OVERWRITE);
    if (Files.isRegularFile(nio(from)) && !Files.isDirectory(nio(to))) {
      move(nio(from), nio(to), replace);
    } else {
      super.rename(from, to, options);
    }
  }

  @Override
  protected boolean mkOneDirWithMode(Path path, File file, FsPermission permission)
      throws IOException {
    boolean made = super.mkOneDirWithMode(path, file, permission);
    if (made) {
      Disk.syncParent(file.toPath());
    }
    return made;
  }

  void sync(Path path) throws IOException {
    Disk.syncFile(nio(path));
    Disk.syncParent(nio(path));
  }

  /** Bytes first, then the name: after a power cut the name is either absent or complete. */
  private void move(java.nio.file.Path source, java.nio.file.Path target, boolean replace)
      throws IOException {
    try {
      Disk.syncFile(source);
      if (replace) {
        Files.move(source, target, StandardCopyOption.ATOMIC_MOVE);
      } else {
        moveOnce(source, target);
      }
    } catch (NoSuchFileException e) { // Hadoop's callers know java.io's only
      throw (IOException) new java.io.FileNotFoundException(e.getMessage()).initCause(e);
    }
    Disk.syncParent(target);
    if (!source.getParent().equals(target.getParent())) {
      Disk.syncParent(source);
    }
  }

  /** POSIX rename replaces, and check-then-rename lets two drivers win one name; link does neither. */
  private void moveOnce(java.nio.file.Path source, java.nio.file.Path target) throws IOException {
    try {
      try {
        Files.createLink(target, source);
      } catch (FileAlreadyExistsException | NoSuchFileException e) {
        throw e;
      } catch (IOException | UnsupportedOperationException noLinks) {
        // Claim the name, then replace the claim. A crash between leaves an empty file, which
        // recovery knows how to treat; two winners it would not.
        Files.createFile(target);
        Files.move(source, target, StandardCopyOption.ATOMIC_MOVE);
        return;
      }
      Files.delete(source);
    } catch (FileAlreadyExistsException e) { // Spark looks for Hadoop's class of the same name
      throw new org.apache.hadoop.fs.FileAlreadyExistsException(
          "rename destination " + target + " already exists");
    }
  }

  /** Side files of ChecksumFileSystem follow their data file, which has already won its name. */
  private static boolean isChecksum(Path path) {
    return path.getName().startsWith(".") && path.getName().endsWith(".crc");
  }

  private java.nio.file.Path nio(Path path) {
    return pathToFile(path).toPath();
  }

  private static Set<PosixFilePermission> posix(int mode) {
    PosixFilePermission[] all = PosixFilePermission.values(); // owner r, w, x, group r, …
    Set<PosixFilePermission> set = EnumSet.noneOf(PosixFilePermission.class);
    for (int i = 0; i < all.length; i++) {
      if ((mode & (0400 >> i)) != 0) {
        set.add(all[i]);
      }
    }
    return set;
  }
}
