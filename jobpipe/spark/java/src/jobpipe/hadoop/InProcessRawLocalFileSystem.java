package jobpipe.hadoop;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.io.nativeio.NativeIO;

/**
 * Hadoop's local files without a process for each question: {@code chmod}, which Hadoop starts where its native library
 * is missing, and {@code readlink}, which it starts in any case. Whatever is not certain to come out the same is left to
 * Hadoop, as are all errors.
 */
public class InProcessRawLocalFileSystem extends RawLocalFileSystem {

  private static final int SETUID_SETGID_STICKY = 07000;

  @Override
  public void setPermission(Path path, FsPermission permission) throws IOException {
    if (NativeIO.isAvailable() || !changeMode(path, permission)) {
      super.setPermission(path, permission);
    }
  }

  /** Hadoop, too, asks for the status alone once {@code readlink} has said that there is no link. */
  @Override
  public FileStatus getFileLinkStatus(Path path) throws IOException {
    return mayBeLink(path) ? super.getFileLinkStatus(path) : getFileStatus(path);
  }

  /** The program keeps a folder's setgid bit, the system call does not: neither has nor gets any such bit here. */
  private boolean changeMode(Path path, FsPermission permission) {
    try {
      java.nio.file.Path file = pathToFile(path).toPath();
      int mode = (Integer) Files.getAttribute(file, "unix:mode");
      if (((mode | permission.toShort()) & SETUID_SETGID_STICKY) != 0) {
        return false;
      }
      Files.setPosixFilePermissions(file, PosixFilePermissions.fromString(permission.toString()));
      return true;
    } catch (IOException | RuntimeException e) { // no such file; no Unix; a name that Java cannot encode
      return false;
    }
  }

  private boolean mayBeLink(Path path) {
    try {
      return Files.isSymbolicLink(pathToFile(path).toPath());
    } catch (RuntimeException e) { // a name that Java cannot encode
      return true;
    }
  }
}
