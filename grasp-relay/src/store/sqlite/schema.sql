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
