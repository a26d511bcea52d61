//! Files that somebody else may have put there: a pipe would be waited for without end, and a device has none.

use std::{fs, io, path::Path};

/// All bytes of a plain file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a plain file"));
    }
    fs::read(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_not_read() {
        let home = tempfile::tempdir().unwrap();
        let (endless, plain) = (home.path().join("current"), home.path().join("plain"));
        std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
        assert!(read(&endless).unwrap_err().to_string().contains("not a plain file"));
        assert!(read(home.path()).is_err());
        assert_eq!(read(&plain).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&plain, b"all of it").unwrap();
        assert_eq!(read(&plain).unwrap(), b"all of it");
    }
}
