-- A repository is its signed state: its row names the state and has the refs of pull requests. What a state declares stands
-- here, once for all repositories that show it: branches and tags as a `packed-refs` file has them, and HEAD.
CREATE TABLE states (
    id   BLOB PRIMARY KEY NOT NULL,
    head TEXT NOT NULL,
    refs TEXT NOT NULL
) STRICT;

-- The refs of pull requests, as a `packed-refs` file has them.
ALTER TABLE views ADD COLUMN proposals TEXT NOT NULL DEFAULT '';

-- Until now all refs were one text in the order of their names: branches, pull requests, tags. A line is an object of 40 or 64
-- digits and a name.
WITH first (at, refs, position, digits) AS (
    SELECT rowid, refs, instr(refs, ' refs/nostr/'),
        CASE substr(char(10) || refs, instr(refs, ' refs/nostr/') - 40, 1) WHEN char(10) THEN 40 ELSE 64 END
    FROM views WHERE instr(refs, ' refs/nostr/') > 0
), rest (at, refs, digits) AS (
    SELECT at, substr(refs, position - digits), digits FROM first
)
UPDATE views SET proposals = (
    SELECT CASE instr(refs, ' refs/tags/') WHEN 0 THEN refs
        ELSE substr(refs, 1, instr(refs, ' refs/tags/') - digits - 1) END
    FROM rest WHERE at = views.rowid
) WHERE instr(views.refs, ' refs/nostr/') > 0;

INSERT OR IGNORE INTO states (id, head, refs)
    SELECT state, head, replace(refs, proposals, '') FROM views WHERE state IS NOT NULL ORDER BY generation;
ALTER TABLE views DROP COLUMN refs;
ALTER TABLE views DROP COLUMN head;

-- Each repository with what its state declares.
CREATE VIEW repositories AS
    SELECT v.endpoint, v.identifier, v.owner, v.generation, s.head, s.refs, v.proposals, v.state, v.maintainers, v.shows
    FROM views v LEFT JOIN states s ON s.id = v.state;
