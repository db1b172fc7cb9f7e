CREATE SCHEMA shop;
CREATE TABLE shop.customers (id int PRIMARY KEY, name text NOT NULL, city text);
CREATE TABLE shop.products (id int PRIMARY KEY, name text NOT NULL, price numeric(10, 2) NOT NULL);
CREATE TABLE shop.orders (
    id bigint PRIMARY KEY, customer int NOT NULL, status text NOT NULL, total numeric(12, 2) NOT NULL,
    changed_at timestamptz NOT NULL
);
CREATE TABLE shop.order_items (
    order_id bigint NOT NULL, product int NOT NULL, quantity int NOT NULL, PRIMARY KEY (order_id, product)
);
