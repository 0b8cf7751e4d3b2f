//! What is kept: git data, what waits for it, and events.

use super::Setting;
use crate::config::codec::{Bytes, Count, Maybe, Path, Switch, Time};

pub(super) const PURGATORY: &[Setting] = settings! { "purgatory." at [settings.purgatory];
    wait: Time,
        "How long an event waits before it counts as expired. Renewed by what shows that somebody is at it.";
    longest_wait: Time,
        "How long an event waits at most while git servers that may have its data have not been asked yet.";
    soft: Time,
        "How long an expired announcement is remembered, so that it is not fetched anew each time it is offered.";
    placeholder: Time, "How long an upload waits for the event that names it.";
    wanted: Time, "How long an expired state or pull request is still looked for.";
    user_delay: Time,
        "When the hunt for an event's data begins if a user brought the event: a push usually follows.";
    retry: Time, "When something that failed on our side is tried again.";
    states_per_author: Count, "States of one author and repository name that wait.";
    per_author_count (per_author.count): Count, "Events of one author that wait.";
    per_author_bytes (per_author.bytes): Bytes, "Bytes of one author's events that wait.";
    per_identifier_count (per_identifier.count): Count, "Events that wait under one repository name.";
    per_identifier_bytes (per_identifier.bytes): Bytes, "Bytes of events that wait under one repository name.";
    in_all_count (in_all.count): Count, "Events that wait.";
    in_all_bytes (in_all.bytes): Bytes, "Bytes of events that wait.";
    shelf_count (shelf.count): Count, "Events that are remembered after they expired.";
    shelf_bytes (shelf.bytes): Bytes, "Bytes of events that are remembered after they expired.";
    staged_count (staged.count): Count, "Events that uploads wait for.";
    staged_bytes (staged.bytes): Bytes, "Bytes of uploads that wait for their event.";
    tips_per_event: Count, "Different uploads that may wait for one event.";
};

pub(super) const GIT: &[Setting] = settings! { "git." at [settings.git];
    push_bytes: Bytes, "The largest pack that one push may bring.";
    push_memory: Bytes,
        "Memory that unpacking one push may take. What nobody has signed for gets no more than 256 MiB.";
    fetch_request_bytes: Bytes, "The largest request for a fetch; it holds only names of objects.";
    stall: Time, "How long a client may send next to nothing in the middle of a request.";
    at_once_per_ip: Count,
        "Git processes at once for one address (IPv4) or /64 (IPv6). What it asks for beyond waits, and keeps nobody else waiting.";
    @common secure: Switch, "Whether others reach the server over TLS, for the addresses that it shows.";
};

pub(super) const PLACES: &[Setting] = settings! { "git." at [settings];
    program (git_program): Maybe<Path>, "The git to run. Without one: the first in `PATH`.";
    repositories: Maybe<Path> as "DIR",
        "Where the repositories are. Without one: `git` in the data directory.";
};

pub(super) const PROCESSES: &[Setting] = settings! { "git." at [settings.processes];
    own_pace: Maybe<Count>,
        "Git processes at once that work as fast as the machine lets them. Without one: two per processor.";
    client_pace: Maybe<Count>,
        "Git processes at once that work as fast as a client reads or sends. Without one: sixteen per processor.";
    remote_pace: Maybe<Count>,
        "Git processes at once that work as fast as another server sends. Without one: sixteen per processor.";
};

pub(super) const STAGING: &[Setting] = settings! { "git." at [settings.staging];
    staged_bytes_per_event (bytes_per_event): Bytes, "Bytes of all uploads for one event.";
    staged_bytes_per_family (bytes_per_family): Bytes, "Bytes of all uploads under one repository name.";
};

pub(super) const SQLITE: &[Setting] = settings! { "sqlite." at [settings.sqlite];
    readers: Count, "Threads that read at the same time; each costs a connection and its cache.";
    reader_cache: Bytes, "Bytes of the file that one reader keeps in memory.";
    writer_cache: Bytes, "Bytes of the file that the writer keeps in memory; more makes large imports faster.";
};
