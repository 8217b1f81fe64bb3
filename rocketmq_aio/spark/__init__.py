"""RocketMQ as a data source and sink of Spark; needs the extra ``rocketmq-aio[spark]``."""
