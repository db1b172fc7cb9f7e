package jobpipe.hadoop;

import org.apache.hadoop.fs.LocalFileSystem;

/**
 * Hadoop's {@code LocalFileSystem}, the {@code file:} of file sinks and of RocksDB's snapshots, over
 * {@link InProcessRawLocalFileSystem}: for {@code fs.file.impl}.
 */
public class InProcessLocalFileSystem extends LocalFileSystem {

  public InProcessLocalFileSystem() {
    super(new InProcessRawLocalFileSystem());
  }
}
