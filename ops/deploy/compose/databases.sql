-- Runs once, when PostgreSQL creates its data folder: a database for each service. Prefect's searches need trigrams.
CREATE DATABASE ledger;
CREATE DATABASE mlflow;
CREATE DATABASE prefect;
\connect prefect
CREATE EXTENSION IF NOT EXISTS pg_trgm;
