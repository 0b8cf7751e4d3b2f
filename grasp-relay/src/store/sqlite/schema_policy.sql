-- What operators decide while the server runs: banned, allowed, blocked and refused, by list and text.
CREATE TABLE policy (
    list    TEXT    NOT NULL,
    subject TEXT    NOT NULL,
    reason  TEXT    NOT NULL,
    actor   TEXT    NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (list, subject)
) STRICT, WITHOUT ROWID;

-- The number that each change of what operators decide raises, and each change of what is hidden.
CREATE TABLE policy_version (last INTEGER NOT NULL) STRICT;
INSERT INTO policy_version (last) VALUES (0);

-- Repositories that operators hold, until when they can be restored.
CREATE TABLE held_repos (
    identifier TEXT    NOT NULL,
    owner      BLOB    NOT NULL,
    reason     TEXT    NOT NULL,
    actor      TEXT    NOT NULL,
    since      INTEGER NOT NULL,
    until      INTEGER NOT NULL,
    PRIMARY KEY (identifier, owner)
) STRICT, WITHOUT ROWID;

-- Events out of service by a decision of operators, with its cause. `place` is the order in which they come back: 0 others,
-- 1 states, 2 announcements. `own` is the hash of the author's event by id, as gates have it.
CREATE TABLE hidden (
    id         BLOB    PRIMARY KEY NOT NULL,
    pubkey     BLOB    NOT NULL,
    newest     INTEGER NOT NULL,
    own        BLOB    NOT NULL,
    coordinate BLOB,
    cause      TEXT    NOT NULL,
    place      INTEGER NOT NULL,
    since      INTEGER NOT NULL,
    until      INTEGER NOT NULL,
    json       TEXT    NOT NULL
) STRICT;
CREATE INDEX hidden_by_cause ON hidden (cause, place, newest);
CREATE INDEX hidden_by_author ON hidden (pubkey, newest);
CREATE INDEX hidden_by_coordinate ON hidden (coordinate);
CREATE INDEX hidden_by_end ON hidden (until);

-- The causes for which events may be hidden.
CREATE TABLE hidden_causes (cause TEXT PRIMARY KEY NOT NULL) STRICT, WITHOUT ROWID;

-- Repositories of which an announcement was served and is not any more, with its id: events that only they are a reason to
-- serve are hidden until they are announced again.
CREATE TABLE unannounced (
    identifier TEXT NOT NULL,
    owner      BLOB NOT NULL,
    event      BLOB NOT NULL,
    PRIMARY KEY (identifier, owner)
) STRICT, WITHOUT ROWID;

-- The log of what operators did and tried. An empty error is none.
CREATE TABLE audit (
    seq    INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL,
    actor  TEXT    NOT NULL,
    via    TEXT    NOT NULL,
    auth   BLOB,
    method TEXT    NOT NULL,
    params TEXT    NOT NULL,
    error  TEXT    NOT NULL
) STRICT;

-- Roles, and the keys that have them.
CREATE TABLE roles (
    id          TEXT    PRIMARY KEY NOT NULL,
    label       TEXT    NOT NULL,
    description TEXT    NOT NULL,
    color       TEXT    NOT NULL,
    position    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE role_members (
    pubkey BLOB    NOT NULL,
    role   TEXT    NOT NULL,
    actor  TEXT    NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (pubkey, role)
) STRICT, WITHOUT ROWID;

-- Authorizations that were used, for as long as they could be used again.
CREATE TABLE auth_seen (
    id    BLOB    PRIMARY KEY NOT NULL,
    until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX auth_seen_by_end ON auth_seen (until);

-- Texts that replace settings.
CREATE TABLE overrides (
    key      TEXT    PRIMARY KEY NOT NULL,
    value    TEXT    NOT NULL,
    revision INTEGER NOT NULL,
    actor    TEXT    NOT NULL,
    at       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
