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
