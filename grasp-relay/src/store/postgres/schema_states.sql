-- What states declare, once for all repositories that show them, as in SQLite.
CREATE TABLE views_before_states AS TABLE views;

CREATE TABLE states (
    id   BYTEA PRIMARY KEY,
    head TEXT  NOT NULL,
    refs TEXT  NOT NULL
);

ALTER TABLE views ADD COLUMN proposals TEXT NOT NULL DEFAULT '';

-- Until now all refs were one text in the order of their names: branches, pull requests, tags. A line is an object of 40 or 64
-- digits and a name.
WITH first AS (
    SELECT endpoint, identifier, owner, refs, strpos(refs, ' refs/nostr/') AS position,
        CASE substr(chr(10) || refs, strpos(refs, ' refs/nostr/') - 40, 1) WHEN chr(10) THEN 40 ELSE 64 END AS digits
    FROM views WHERE strpos(refs, ' refs/nostr/') > 0
), rest AS (
    SELECT endpoint, identifier, owner, substr(refs, position - digits) AS refs, digits FROM first
)
UPDATE views SET proposals = CASE strpos(rest.refs, ' refs/tags/') WHEN 0 THEN rest.refs
        ELSE substr(rest.refs, 1, strpos(rest.refs, ' refs/tags/') - digits - 1) END
    FROM rest WHERE views.endpoint = rest.endpoint AND views.identifier = rest.identifier AND views.owner = rest.owner;

INSERT INTO states (id, head, refs)
    SELECT state, head, replace(refs, proposals, '') FROM views WHERE state IS NOT NULL ORDER BY generation
    ON CONFLICT (id) DO NOTHING;
ALTER TABLE views DROP COLUMN refs;
ALTER TABLE views DROP COLUMN head;

CREATE VIEW repositories AS
    SELECT v.endpoint, v.identifier, v.owner, v.generation, s.head, s.refs, v.proposals, v.state, v.maintainers, v.shows
    FROM views v LEFT JOIN states s ON s.id = v.state;
