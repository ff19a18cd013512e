//! Writes of one batch that lie side by side on a disk, made one request: whatever a disk takes for a
//! request, seek or command, it takes once for all of them.
//!
//! Owns which are joined, and in which order they go, which is that of the disk. Never: what is written
//! together (`threads`), for writes of a batch touch no block twice and have no order among them. Invariant:
//! each write is told what became of it, and none of another's fault: what fails together is tried alone.
//! Called by `journal`. Tests: below.

use super::file::{Blocks, Pages};
use std::io;

/// So much is copied into one request at most.
const JOINED_BYTES_MAX: usize = 1 << 20;

/// What became of each.
pub(super) fn write_all(blocks: &dyn Blocks, writes: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
    let mut order: Vec<usize> = (0..writes.len()).collect();
    order.sort_by_key(|nth| writes[*nth].0);
    let mut runs: Vec<Vec<usize>> = Vec::new();
    let (mut end, mut bytes) = (0, 0);
    for nth in order {
        let (at, content) = writes[nth];
        match runs.last_mut() {
            Some(run) if at == end && bytes + content.len() <= JOINED_BYTES_MAX => run.push(nth),
            _ => {
                runs.push(vec![nth]);
                bytes = 0;
            }
        }
        (end, bytes) = (at + content.len() as u64, bytes + content.len());
    }
    let joined: Vec<Option<Pages>> =
        runs.iter().map(|run| (run.len() > 1).then(|| join(run, writes))).collect();
    let requests: Vec<(u64, &[u8])> = runs
        .iter()
        .zip(&joined)
        .map(|(run, joined)| (writes[run[0]].0, joined.as_ref().map_or(writes[run[0]].1, Pages::bytes)))
        .collect();
    let mut results: Vec<io::Result<()>> = writes.iter().map(|_| Ok(())).collect();
    for (run, told) in runs.iter().zip(blocks.write_all(&requests)) {
        match told {
            Ok(()) => {}
            Err(why) if run.len() == 1 => results[run[0]] = Err(why),
            Err(_) => {
                for nth in run {
                    results[*nth] = blocks.write_at(writes[*nth].0, writes[*nth].1);
                }
            }
        }
    }
    results
}

fn join(run: &[usize], writes: &[(u64, &[u8])]) -> Pages {
    let mut pages = Pages::new(run.iter().map(|nth| writes[*nth].1.len()).sum());
    let mut rest = pages.bytes_mut();
    for nth in run {
        let (here, behind) = rest.split_at_mut(writes[*nth].1.len());
        here.copy_from_slice(writes[*nth].1);
        rest = behind;
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Notes what it is given, and cannot write one page.
    #[derive(Debug, Default)]
    struct Noting {
        given: Mutex<Vec<(u64, Vec<u8>)>>,
        bad: Option<u64>,
    }

    impl Blocks for Noting {
        fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Ok(())
        }

        fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
            self.given.lock().expect("no test panics here").push((at, bytes.to_vec()));
            let is_bad = self.bad.is_some_and(|bad| (at..at + bytes.len() as u64).contains(&bad));
            if is_bad { Err(io::Error::other("a bad page")) } else { Ok(()) }
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }

        fn zero(&self, _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }
    }

    fn page(fill: u8) -> Vec<u8> {
        vec![fill; 4096]
    }

    #[test]
    fn neighbours_are_one_request_whatever_their_order() {
        let disk = Noting::default();
        let pages: Vec<Vec<u8>> = (0..4).map(page).collect();
        let writes = [(8192, &pages[2][..]), (0, &pages[0]), (4096, &pages[1]), (40960, &pages[3])];
        assert!(write_all(&disk, &writes).iter().all(Result::is_ok));
        let given = disk.given.into_inner().expect("no test panics here");
        assert_eq!(given, [(0, pages[..3].concat()), (40960, pages[3].clone())]);
    }

    #[test]
    fn a_request_is_not_joined_without_end() {
        let disk = Noting::default();
        let half = vec![7; JOINED_BYTES_MAX / 2];
        let writes: Vec<(u64, &[u8])> = (0..5).map(|nth| (nth * half.len() as u64, &half[..])).collect();
        assert!(write_all(&disk, &writes).iter().all(Result::is_ok));
        let given = disk.given.into_inner().expect("no test panics here");
        let lens: Vec<usize> = given.iter().map(|(_, bytes)| bytes.len()).collect();
        assert_eq!(lens, [JOINED_BYTES_MAX, JOINED_BYTES_MAX, JOINED_BYTES_MAX / 2]);
    }

    #[test]
    fn what_fails_is_what_lies_on_the_bad_page() {
        let disk = Noting { bad: Some(4096), ..Noting::default() };
        let pages: Vec<Vec<u8>> = (0..3).map(page).collect();
        let writes = [(4096, &pages[1][..]), (0, &pages[0]), (8192, &pages[2])];
        let told: Vec<bool> = write_all(&disk, &writes).iter().map(Result::is_ok).collect();
        assert_eq!(told, [false, true, true]);
    }
}
