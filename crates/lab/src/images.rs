//! Real disk images: Debian's `forensics-samples`, unpacked once into a cache and verified each time they are
//! used. Never: hands out an image whose SHA-256 is not the known one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::{hash, mark, tools};

/// Where the packages put the packed images and the files that were planted in them.
pub const PACKED: &str = "/usr/share/forensics-samples";
pub const PLANTED: &str = "/usr/share/forensics-samples/original-files";

/// A disk image and what it must be.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub name: &'static str,
    pub bytes: u64,
    pub sha256: &'static str,
}

/// Every image of `forensics-samples` 1.1.4.
pub const SAMPLES: [Sample; 7] = [
    sample("fs.btrfs", 157_286_400, "9885e575cf85a0f63051e4f485dd0e741e0b8e06c52c7821f9a6348855ef4271"),
    sample("fs.exfat", 52_428_800, "98d518601199a32054158bb3a759e12b554fd2ebcc5960541caf9e1a907198d0"),
    sample("fs.ext2", 52_428_800, "eb391d1a231473a7adafb2513d5f9e22fad974976a8fa60ec832d62f1b21f451"),
    sample("fs.ext4", 52_428_800, "ceede62e060bb75a17dcf307bf0e5eba2d0d2ba31255f60c3e73f56f96a2c9ba"),
    sample("fs.multiple", 262_144_000, "4a2b0b9d9170fd09facd14a08a1a8c801649b5b565749e435870d3de7e08cd84"),
    sample("fs.ntfs", 52_428_800, "9c5b6fa95b6abe76e6df6898b6d929ecd92bc301fb650baeac48947a8249a8a9"),
    sample("fs.vfat", 52_428_800, "5e3313a8612c43ad7e5186a0c79d07dfa8f000dcca95de063833d1ccd490e21d"),
];

const fn sample(name: &'static str, bytes: u64, sha256: &'static str) -> Sample {
    Sample { name, bytes, sha256 }
}

impl Sample {
    /// The image by its name.
    #[track_caller]
    pub fn named(name: &str) -> Self {
        *SAMPLES.iter().find(|sample| sample.name == name).unwrap_or_else(|| panic!("no image {name}"))
    }

    /// The unpacked image in the cache.
    #[track_caller]
    pub fn path(&self) -> PathBuf {
        let cache = cache_directory();
        fs::create_dir_all(&cache).expect("the cache of images");
        let path = cache.join(self.name);
        if !self.is_good(&path) {
            self.unpack(&path);
        }
        path
    }

    fn is_good(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|data| data.len() == self.bytes) && hash::of_file(path) == self.sha256
    }

    fn unpack(&self, path: &Path) {
        let packed = Path::new(PACKED).join(format!("{}.xz", self.name));
        assert!(packed.exists(), "needs {}: run make setup", packed.display());
        let part = path.with_extension(format!("{}.{:?}", mark::own(), std::thread::current().id()));
        let file = File::create(&part).expect("a file in the cache of images");
        let status =
            tools::command("xz").args(["--decompress", "--stdout"]).arg(&packed).stdout(file).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot unpack {}", packed.display());
        assert!(self.is_good(&part), "{} is not the known image (its SHA-256 differs)", packed.display());
        fs::rename(&part, path).expect("a rename within the cache of images");
    }
}

fn cache_directory() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".cache"))
    });
    cache.unwrap_or_else(std::env::temp_dir).join("cheetah/images")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_the_known_one_and_stays_in_the_cache() {
        let sample = Sample::named("fs.ext2");
        let path = sample.path();
        assert_eq!(hash::of_file(&path), sample.sha256);
        assert_eq!(sample.path(), path);
    }
}
