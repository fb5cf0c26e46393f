package fencepost;

import java.io.File;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * Makes names and bytes on a local disk survive a power cut.
 * It must never report success for something that was not synced.
 */
final class Disk {
  private static final boolean WINDOWS = File.separatorChar == '\\';

  private Disk() {}

  static void syncFile(Path file) throws IOException {
    try (FileChannel channel = FileChannel.open(file, StandardOpenOption.WRITE)) {
      channel.force(true);
    }
  }

  /** A new, renamed or linked name is durable only after its directory is. */
  static void syncDirectory(Path directory) throws IOException {
    if (WINDOWS) {
      return; // a directory cannot be opened there; NTFS journals its names
    }
    try (FileChannel channel = FileChannel.open(directory, StandardOpenOption.READ)) {
      channel.force(true);
    }
  }

  static void syncParent(Path path) throws IOException {
    Path parent = path.toAbsolutePath().getParent();
    if (parent != null) {
      syncDirectory(parent);
    }
  }

  /** Creates what is missing, outermost first, and syncs the parent of each directory it made. */
  static void createDirectories(Path directory, boolean durable) throws IOException {
    if (Files.isDirectory(directory)) {
      return;
    }
    Path parent = directory.toAbsolutePath().getParent();
    if (parent != null) {
      createDirectories(parent, durable);
    }
    try {
      Files.createDirectory(directory);
    } catch (java.nio.file.FileAlreadyExistsException e) {
      if (!Files.isDirectory(directory)) {
        throw e;
      }
    }
    if (durable) {
      syncParent(directory); // also when another task made it: it may not have synced yet
    }
  }
}
