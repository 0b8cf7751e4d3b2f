-- Versions of announcements that took a repository from us, and are not served themselves: older ones stay away.
CREATE TABLE delisted (
    coordinate BLOB    PRIMARY KEY NOT NULL,
    newest     INTEGER NOT NULL,
    id         BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
