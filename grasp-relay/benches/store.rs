//! How fast the event stores are, on a real disk: `cargo bench -p grasp-relay --bench store`.
//!
//! An argument sets the number of events (default 100,000, at least 6,000 so that every repository has some). With the feature `postgres` our other store, with the features `nostr-sqlite` and `nostr-lmdb` those
//! databases run the same course beside ours, in turns of half a second where the disk decides, so that a disk that is
//! slow for a while is slow for all of them.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "store/course.rs"]
mod course;
#[path = "store/events.rs"]
mod events;
#[path = "store/house.rs"]
mod house;
#[path = "store/measure.rs"]
mod measure;
#[cfg(feature = "postgres")]
#[allow(dead_code, unreachable_pub, reason = "shared with tests")]
#[path = "../../tests/src/postgres.rs"]
mod postgres;
#[path = "store/processor.rs"]
mod processor;

use course::{Contender, ROWS};
use events::World;
use measure::Figure;

fn main() {
    let wanted = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let count = wanted.unwrap_or(100_000).max(6_000);
    // Not the system's place for temporary files, which may be memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path();

    println!("writing and signing {count} events");
    let world = World::generate(count);
    println!("on {}, fdatasync of 4 KiB: {}", dir.display(), measure::fdatasync(dir));

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let contenders = runtime.block_on(course::run(house::ALL, dir, &world));
    print(&contenders);
    println!("at the end, fdatasync of 4 KiB: {}", measure::fdatasync(dir));
}

fn print(contenders: &[Contender]) {
    print!("\n{:<40}", "");
    for contender in contenders {
        print!("{:>26}", contender.name);
    }
    println!("{:>12}", "wanted");
    for (row, (title, wanted)) in ROWS.iter().enumerate() {
        print!("{title:<40}");
        let ours = &contenders[0].figures[row];
        for (place, contender) in contenders.iter().enumerate() {
            print!("{:>26}", shown(&contender.figures[row], (place > 0).then_some(ours)));
        }
        println!("{wanted:>12}");
    }
    for contender in contenders.iter().filter(|contender| contender.late > 0) {
        let Contender { name, late, held, .. } = contender;
        println!(
            "{name} was not ready in time: {late} events were left out, so it is asked about {held}"
        );
    }
    println!("[n] means that only so many samples were taken, because each takes so long");
}

fn shown(figure: &Figure, ours: Option<&Figure>) -> String {
    let Some(value) = figure.value else {
        return "not asked: too slow".to_owned();
    };
    let mut text = if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    if let Some(samples) = figure.samples {
        text = format!("{text} [{samples}]");
    }
    if let Some(ours) = ours.and_then(|ours| ours.value) {
        text = format!("{text} ({:.2}x)", value / ours);
    }
    text
}
