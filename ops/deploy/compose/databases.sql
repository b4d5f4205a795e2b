-- Run once, when PostgreSQL makes its data folder: a database for each service. Prefect searches with trigrams.
CREATE DATABASE ledger;
CREATE DATABASE mlflow;
CREATE DATABASE prefect;
\connect prefect
CREATE EXTENSION IF NOT EXISTS pg_trgm;
