-- The secret of this file: lists are named by a hash that nobody outside can compute.
CREATE TABLE secret (salt BLOB NOT NULL) STRICT;
INSERT INTO secret (salt) VALUES (randomblob(64));

-- What is served. `newest` is minus created_at, so that plain ascending order is "newest first, ties by lowest id".
CREATE TABLE events (
    seq    INTEGER PRIMARY KEY,
    newest INTEGER NOT NULL,
    id     BLOB    NOT NULL,
    pubkey BLOB    NOT NULL,
    kind   INTEGER NOT NULL,
    json   TEXT    NOT NULL
) STRICT;
CREATE UNIQUE INDEX events_by_id ON events (id);
CREATE INDEX events_by_time ON events (newest, id);

-- Served events by whatever a filter can name: a kind, an author, the first value of a single-letter tag.
-- Each list is in serving order and tells all that reconciliation needs.
CREATE TABLE lists (
    list   BLOB    NOT NULL,
    newest INTEGER NOT NULL,
    id     BLOB    NOT NULL,
    kind   INTEGER NOT NULL,
    seq    INTEGER NOT NULL,
    PRIMARY KEY (list, newest, id)
) STRICT, WITHOUT ROWID;

-- The one served version of each replaceable or addressable event.
CREATE TABLE heads (
    coordinate BLOB    PRIMARY KEY NOT NULL,
    seq        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Served events that end by themselves (NIP-40).
CREATE TABLE expirations (
    at  INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (at, seq)
) STRICT, WITHOUT ROWID;

-- Versions kept for rollback, never served.
CREATE TABLE superseded (
    seq        INTEGER PRIMARY KEY,
    coordinate BLOB    NOT NULL,
    newest     INTEGER NOT NULL,
    id         BLOB    NOT NULL UNIQUE,
    pubkey     BLOB    NOT NULL,
    expires_at INTEGER,
    json       TEXT    NOT NULL
) STRICT;
CREATE INDEX superseded_by_coordinate ON superseded (coordinate, newest, id);
CREATE INDEX superseded_by_author ON superseded (pubkey, newest);
-- Not a partial index: those make SQLite compile statements again for every value.
CREATE INDEX superseded_by_end ON superseded (expires_at);

-- Deletion requests, beyond the time they are served. `clock` is when one was received or last useful.
CREATE TABLE requests (
    seq     INTEGER PRIMARY KEY,
    pubkey  BLOB    NOT NULL,
    id      BLOB    NOT NULL,
    newest  INTEGER NOT NULL,
    clock   INTEGER NOT NULL,
    retired INTEGER NOT NULL DEFAULT 0,
    UNIQUE (pubkey, id)
) STRICT;
CREATE INDEX requests_by_clock ON requests (retired, clock);

-- What each request deletes: the hash of an author's event by id, or of a coordinate. Each is gated by one request at
-- a time, however many name it.
CREATE TABLE gates (
    target  BLOB    NOT NULL,
    request INTEGER NOT NULL,
    PRIMARY KEY (target, request)
) STRICT, WITHOUT ROWID;
CREATE INDEX gates_by_request ON gates (request);

-- Authors who asked to vanish, and up to when.
CREATE TABLE vanished (
    pubkey BLOB    PRIMARY KEY NOT NULL,
    newest INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
-- Versions of announcements that took a repository from us, and are not served themselves: older ones stay away.
CREATE TABLE delisted (
    coordinate BLOB    PRIMARY KEY NOT NULL,
    newest     INTEGER NOT NULL,
    id         BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

-- Requests to delete or to vanish that are stored and not carried out to the end, by id. What they take away is taken
-- away in steps, each in a transaction of its own.
CREATE TABLE unfinished (id BLOB PRIMARY KEY NOT NULL) STRICT, WITHOUT ROWID;

-- Whether one event has ended, however many have.
CREATE INDEX expirations_by_event ON expirations (seq, at);

-- The refs of each served repository, as a `packed-refs` file has them. Endpoint 0 is that of hosted repositories, 1 that
-- of contributors. Each change gives a view another generation.
CREATE TABLE views (
    endpoint    INTEGER NOT NULL,
    identifier  TEXT    NOT NULL,
    owner       BLOB    NOT NULL,
    generation  INTEGER NOT NULL,
    head        TEXT    NOT NULL,
    refs        TEXT    NOT NULL,
    -- The id of the state event that branches and tags are of.
    state       BLOB,
    -- The keys of the maintainers when the refs were last changed, one after the other.
    maintainers BLOB    NOT NULL,
    -- The owner of the repository that this one is an address of.
    shows       BLOB,
    UNIQUE (endpoint, identifier, owner)
) STRICT;
CREATE INDEX views_by_state ON views (state);

-- The last generation that a view was given. None has one twice, also if it was removed and comes back.
CREATE TABLE generations (last INTEGER NOT NULL) STRICT;
INSERT INTO generations (last) VALUES (0);

-- Where pull requests have refs: their deletion removes exactly these.
CREATE TABLE proposal_refs (
    event      BLOB    NOT NULL,
    endpoint   INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    owner      BLOB    NOT NULL,
    PRIMARY KEY (event, endpoint, identifier, owner)
) STRICT, WITHOUT ROWID;

-- The packs of each repository. Files that are not named here are garbage.
CREATE TABLE packs (
    endpoint   INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    owner      BLOB    NOT NULL,
    name       TEXT    NOT NULL,
    bytes      INTEGER NOT NULL,
    -- When it was last read as a whole.
    verified   INTEGER NOT NULL DEFAULT (unixepoch()),
    PRIMARY KEY (endpoint, identifier, owner, name)
) STRICT, WITHOUT ROWID;

-- Tips of branches and tags that were moved or removed, for as long as their objects are kept.
CREATE TABLE retired_refs (
    endpoint   INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    owner      BLOB    NOT NULL,
    tip        TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    since      INTEGER NOT NULL,
    PRIMARY KEY (endpoint, identifier, owner, tip)
) STRICT, WITHOUT ROWID;

-- Repositories that may have objects that no ref shows: 1 if refs were moved, 2 if something was removed for good.
CREATE TABLE garbage (
    endpoint   INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    owner      BLOB    NOT NULL,
    mark       INTEGER NOT NULL,
    PRIMARY KEY (endpoint, identifier, owner)
) STRICT, WITHOUT ROWID;

-- Events that wait for git data: phase 0 is waiting, 1 is expired.
CREATE TABLE held (
    id    BLOB    PRIMARY KEY NOT NULL,
    phase INTEGER NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    event TEXT    NOT NULL
) STRICT;

-- Uploads that wait for their events.
CREATE TABLE staged (
    id     BLOB    NOT NULL,
    tip    TEXT    NOT NULL,
    place  TEXT    NOT NULL,
    target TEXT    NOT NULL,
    bytes  INTEGER NOT NULL,
    until  INTEGER NOT NULL,
    PRIMARY KEY (id, tip, place)
) STRICT, WITHOUT ROWID;

-- Cleanup tasks that are pending.
CREATE TABLE tasks (
    key  TEXT PRIMARY KEY NOT NULL,
    task TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Bytes of git data that came within an hour, for the limits of a day. An author without bytes is none. Of the kind, bit 0
-- says that a maintainer of a served repository brought them, bit 1 that the server fetched them.
CREATE TABLE additions (
    at         INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    owner      BLOB    NOT NULL,
    author     BLOB    NOT NULL,
    kind       INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    PRIMARY KEY (at, identifier, owner, author, kind)
) STRICT, WITHOUT ROWID;
