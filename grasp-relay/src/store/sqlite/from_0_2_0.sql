-- From 0.2.0, in which the repositories of one identifier shared their packs: each gets the name of every pack, and the next
-- collection removes what it does not need. What can be done again is not kept: uploads without an event, cleanup tasks, the
-- bytes of the last day. Event and index tables are the same.
ALTER TABLE views RENAME TO old_views;
ALTER TABLE packs RENAME TO old_packs;
DROP INDEX views_by_state;

CREATE TABLE views (
    endpoint    INTEGER NOT NULL,
    identifier  TEXT    NOT NULL,
    owner       BLOB    NOT NULL,
    generation  INTEGER NOT NULL,
    head        TEXT    NOT NULL,
    refs        TEXT    NOT NULL,
    state       BLOB,
    maintainers BLOB    NOT NULL,
    shows       BLOB,
    UNIQUE (endpoint, identifier, owner)
) STRICT;
CREATE INDEX views_by_state ON views (state);
INSERT INTO views (endpoint, identifier, owner, generation, head, refs, state, maintainers)
    SELECT endpoint, identifier, owner, generation, head, refs, state, owner FROM old_views ORDER BY number;

CREATE TABLE proposal_refs (
    event      BLOB    NOT NULL,
    endpoint   INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    owner      BLOB    NOT NULL,
    PRIMARY KEY (event, endpoint, identifier, owner)
) STRICT, WITHOUT ROWID;
-- The refs are lines such as `<object> refs/nostr/<event>`.
WITH RECURSIVE lines (endpoint, identifier, owner, line, rest) AS (
    SELECT endpoint, identifier, owner, '', refs || char(10) FROM views
    UNION ALL
    SELECT endpoint, identifier, owner, substr(rest, 1, instr(rest, char(10)) - 1), substr(rest, instr(rest, char(10)) + 1)
        FROM lines WHERE rest <> ''
)
INSERT OR IGNORE INTO proposal_refs (event, endpoint, identifier, owner)
    SELECT unhex(substr(line, instr(line, ' refs/nostr/') + 12)), endpoint, identifier, owner
        FROM lines WHERE line GLOB '* refs/nostr/*';

CREATE TABLE packs (
    endpoint   INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    owner      BLOB    NOT NULL,
    name       TEXT    NOT NULL,
    bytes      INTEGER NOT NULL,
    verified   INTEGER NOT NULL DEFAULT (unixepoch()),
    PRIMARY KEY (endpoint, identifier, owner, name)
) STRICT, WITHOUT ROWID;
-- Packs with objects of replaced refs had a place of their own, which no repository read.
INSERT OR IGNORE INTO packs (endpoint, identifier, owner, name, bytes, verified)
    SELECT endpoint, identifier, owner, name, bytes, verified FROM old_packs JOIN views USING (endpoint, identifier);

DROP TABLE garbage;
CREATE TABLE garbage (
    endpoint   INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    owner      BLOB    NOT NULL,
    mark       INTEGER NOT NULL,
    PRIMARY KEY (endpoint, identifier, owner)
) STRICT, WITHOUT ROWID;
INSERT INTO garbage (endpoint, identifier, owner, mark) SELECT endpoint, identifier, owner, 1 FROM views;
DELETE FROM retired_refs WHERE (endpoint, identifier, owner) NOT IN (SELECT endpoint, identifier, owner FROM views);

DROP TABLE additions;
CREATE TABLE additions (
    at         INTEGER NOT NULL,
    identifier TEXT    NOT NULL,
    owner      BLOB    NOT NULL,
    author     BLOB    NOT NULL,
    kind       INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    PRIMARY KEY (at, identifier, owner, author, kind)
) STRICT, WITHOUT ROWID;

DELETE FROM staged;
DELETE FROM tasks;
DROP TABLE old_views;
DROP TABLE old_packs;
