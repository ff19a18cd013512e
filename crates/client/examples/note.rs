//! A note in a volume of the pool that this user has joined, which is there also when a donor is not:
//! `note VOLUME`.

use cheetah_client::{Client, Error, Options, blocking::Volume, joined};

pub fn keep_a_note(pool: &Client, volume: &str, meanwhile: impl FnOnce()) -> Result<String, Error> {
    let volume = Volume::open(pool, volume, &Options::default())?;
    volume.write_at(4096, b"seen at 10:42")?;
    volume.flush()?;
    meanwhile(); // somebody switches off a machine that lends memory
    let mut note = [0; 13];
    volume.read_at(4096, &mut note)?;
    volume.write_at(4096, b"gone at 10:43")?;
    volume.detach()?;
    Ok(String::from_utf8_lossy(&note).into_owned())
}

#[allow(dead_code, clippy::print_stdout)]
fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let wait = || std::thread::sleep(std::time::Duration::from_secs(10));
    match arguments.as_slice() {
        [_, volume] => println!("{:?}", joined().and_then(|pool| keep_a_note(&pool, volume, wait))),
        _ => eprintln!("note VOLUME"),
    }
}
