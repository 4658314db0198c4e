"""rows -> what people read: pictures, tables, pages."""
