package fencepost;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;

/**
 * fs.AbstractFileSystem.file.impl: {@link DurableRaw} as Spark's checkpoint logs and state files use it.
 * Replacing a file must never show a moment without it: the stock class deletes first.
 */
public class DurableFs extends DelegateToFileSystem {
  public DurableFs(URI uri, Configuration conf) throws IOException, URISyntaxException {
    super(URI.create("file:///"), new DurableRaw(), conf, "file", false);
  }

  @Override
  public int getUriDefaultPort() {
    return -1;
  }

  @Override
  public boolean isValidName(String source) {
    return true; // as the stock local class: any name the disk takes
  }

  @Override
  public void renameInternal(Path from, Path to) throws IOException {
    renameInternal(from, to, false);
  }

  @Override
  public void renameInternal(Path from, Path to, boolean overwrite) throws IOException {
    ((DurableRaw) fsImpl)
        .rename(from, to, overwrite ? Options.Rename.OVERWRITE : Options.Rename.NONE);
  }
}
