//! SHA-256 of files and streams, in lower-case hexadecimal.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use cheetah_core::text::hex;
use sha2::{Digest, Sha256};

/// The hash of all that a reader gives.
pub fn of_reader(mut reader: impl Read) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(hex(&hasher.finalize())),
            Ok(count) => hasher.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The hash of a file or block device.
#[track_caller]
pub fn of_file(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    match File::open(path).and_then(of_reader) {
        Ok(hash) => hash,
        Err(error) => panic!("cannot hash {}: {error}", path.display()),
    }
}

/// The hash of every ordinary file below a directory, by its path within.
#[track_caller]
pub fn of_tree(root: &Path) -> BTreeMap<String, String> {
    let mut hashes = BTreeMap::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let entries = std::fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("cannot list {}: {error}", directory.display()));
        for entry in entries {
            let entry = entry.unwrap_or_else(|error| panic!("cannot list {}: {error}", directory.display()));
            let kind = entry.file_type().expect("the type of a file");
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let name =
                    path.strip_prefix(root).expect("a path below the root").to_string_lossy().into_owned();
                hashes.insert(name, of_file(&path));
            }
        }
    }
    hashes
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_standard_vector() {
        let hash = super::of_reader(&b"abc"[..]).expect("a slice reads");
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
